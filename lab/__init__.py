"""Measures and proves: benchmarks, offline checks of artifacts, pictures, and training.

Nothing in the product imports it, except for the commands `eagle-bench` and `eagle-check` and
`eagle-run --plot`.
"""
