"""A few of many, from beginning to end."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def spread(every: Sequence[T], count: int) -> Sequence[T]:
    """So many at equal distances, or all where there are fewer."""
    return every[:: max(len(every) // count, 1)][:count]
