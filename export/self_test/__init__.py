"""Measure whether the drafter reads this target as it was trained to, before an export compiles.

A head that taps the wrong layers, or whose files are misread, still gives the right text, but
slowly. So the target answers prompts greedily, and the drafter drafts these answers in every way in
which its files can be read.
"""
