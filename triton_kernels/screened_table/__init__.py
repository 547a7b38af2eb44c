"""Exact largest logits by an INT8 copy of the output table."""
