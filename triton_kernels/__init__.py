"""Operators that are too slow in stock PyTorch, as Triton kernels; imports no other folder."""
