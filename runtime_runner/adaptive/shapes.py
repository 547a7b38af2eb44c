"""What may be chosen where nothing is asked for."""

from typing import Final

from eagle_aot.runtime_runner.decode.shape import Shape

AUTO_TREE: Final = "auto"
PLAIN = Shape.chain(0)
LONGEST = 7
"""Drafts of a chain, at most."""
TREES = Shape(4, 2, 7), Shape(4, 4, 15), Shape(4, 8, 31), Shape(6, 8, 31), Shape(7, 8, 63)
"""With their roots they have 8, 16, 32 and 64 rows, all that a step has: a GPU's kernels take rows
in such tiles, and a row more costs as much as a larger tile. None is deeper than the longest chain,
whose acceptance is where a tree's is estimated from."""
