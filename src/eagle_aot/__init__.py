"""EAGLE-3 speculative decoding, compiled ahead of time: checkpoints in, one `.pte` out."""

__version__ = "0.1.0"
