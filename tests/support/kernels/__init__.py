"""Inputs of kernels, and what must come out of them."""
