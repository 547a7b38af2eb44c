"""What a dense weight is made of where fewer bits are asked for, under the names of options."""

from collections.abc import Callable

import torch
from torch import Tensor

from eagle_aot.targets.int4.int8_digits import GROUP, quantise_int8
from eagle_aot.targets.int4.quantise import Scheme, quantise
from eagle_aot.targets.int4.weight import Int4Weight

Quantiser = Callable[[Tensor, torch.dtype], Int4Weight]


def quantise_int4(weight: Tensor, dtype: torch.dtype) -> Int4Weight:
    """`weight` [N, K] as INT4 with a zero point in each group."""
    return quantise(weight, Scheme(GROUP), dtype)


NONE = "none"
QUANTISERS: dict[str, Quantiser] = {"int8": quantise_int8, "int4": quantise_int4}
QUANTS = (NONE, *QUANTISERS)
"""What `--draft-quant` and `--table-quant` take."""
