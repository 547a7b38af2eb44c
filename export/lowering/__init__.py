"""From a pair to the bytes of one `.pte`, one module per backend."""
