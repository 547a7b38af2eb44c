"""The files of a CUDA program, read without ExecuTorch, which takes seconds to import.

Their hashes have been checked before; what is damaged all the same is refused in one line.
"""
