"""Processes logits before a token is chosen, on a GPU, in a few passes over them.

`runtime_runner.sampling.processors` does the same on a CPU, with the same bits.
"""
