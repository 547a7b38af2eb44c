"""Linear layers of few rows over dense bfloat16 weights: output tables and draft heads."""
