"""Does the drafter read this target as it was trained to? Measured before an export compiles.

A head that taps the wrong layers, or whose files were written in another way than they are read,
still gives the right text, only slowly. So the target answers prompts greedily, and the drafter
drafts these answers in every way in which its files can be read.
"""
