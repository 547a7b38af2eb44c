"""What changes logits before a choice, on a GPU in a few passes over them.

The CPU's twin is `runtime_runner.sampling.processors`, whose bits these kernels have.
"""
