"""What `bench_sdpa.py` measures, and beside what."""
