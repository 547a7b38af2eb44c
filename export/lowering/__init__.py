"""From a speculator to the bytes of one `.pte`, one module per backend."""
