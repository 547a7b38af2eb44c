"""What may be chosen where nothing is asked for."""

from typing import Final

from eagle_aot.runtime_runner.rounds.shape import Shape

AUTO_TREE: Final = "auto"
PLAIN = Shape.chain(0)
LONGEST = 7
"""Drafts of a chain, at most."""
TREES = Shape(4, 2, 8), Shape(4, 4, 16), Shape(6, 8, 32), Shape(7, 8, 63)
"""Each with twice the rows of the one before, up to all that a step has, and none deeper than the
longest chain, whose acceptance is where a tree's is estimated from."""
