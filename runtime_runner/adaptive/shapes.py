"""The shapes of draft that `auto` chooses among."""

from typing import Final

from eagle_aot.runtime_runner.decode.shape import Shape

AUTO_TREE: Final = "auto"
LONGEST = 7
"""Drafts of the longest chain."""
CHAINS = tuple(Shape.chain(length) for length in (0, 1, 2, 3, 4, 5, LONGEST))
"""Without 6, which is nowhere faster than 5 and 7 by as much as recording its rounds costs."""
PLAIN = CHAINS[0]
TREES = Shape(4, 2, 7), Shape(4, 4, 15), Shape(4, 8, 31), Shape(6, 8, 31), Shape(7, 8, 63)
"""With its root, a tree has 8, 16, 32 or 64 rows, the most that a step has: GPU kernels take rows
in such tiles, and one row more costs as much as a whole tile. No tree is deeper than the longest
chain, from whose acceptance rates those of trees are estimated."""
