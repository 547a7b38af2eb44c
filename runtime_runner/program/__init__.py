"""An exported program: its files, and the executors that run its methods.

The files of a CUDA program are read without ExecuTorch, whose import takes seconds. Their hashes
have been checked before; a damaged file is still refused in one line.
"""
