"""What an export asks of a drafter, whatever its kind."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

BATCH, ROWS = "batch", "rows"
"""What a dimension of a method's inputs counts: sequences, or rows of a sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSpec:
    """One method of an artifact, ready to be traced.

    `inputs` are examples, each with the dimensions that vary, in the order of the module's
    signature. `min_rows` and `max_rows` bound the rows of a sequence, both inclusive. A method of
    `few_rows` reads each weight once for all of them.
    """

    module: nn.Module
    inputs: tuple[tuple[Tensor, Mapping[int, str]], ...]
    min_rows: int
    max_rows: int
    few_rows: bool
