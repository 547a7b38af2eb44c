"""Dense bfloat16 linears for few rows: output tables and draft heads."""
