"""P-EAGLE draft heads, which are EAGLE-3 heads with a mask."""
