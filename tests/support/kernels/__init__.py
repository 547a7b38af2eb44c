"""Inputs of kernels and their expected outputs."""
