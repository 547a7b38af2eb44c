"""The files of a CUDA program, read without ExecuTorch and without trusting a byte of them."""
