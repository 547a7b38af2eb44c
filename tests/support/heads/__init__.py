"""Random EAGLE-3 heads: their files in every layout, and what they compute."""
