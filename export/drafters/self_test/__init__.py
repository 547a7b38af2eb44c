"""Does the head read this target as it was trained to? Measured, at the export.

A head that is wired to the wrong layers, or reads its files in another way than they were written,
still gives the right text, only slowly. Here every reading that its files could mean drafts the
target's own greedy text.
"""
