"""AWQ checkpoints in the `gemm` packing, read into the canonical layout.

Per linear: `qweight` int32 [K, N / 8], `qzeros` int32 [K / g, N / 8], `scales` [K / g, N]; a word
holds eight columns of N in the order 0, 2, 4, 6, 1, 3, 5, 7, lowest nibble first, and
`w = (code - zero) * scale`. The scaling of activations is folded into the norms already.
Source: AutoAWQ `WQLinear_GEMM`; compressed-tensors 0.20 `converters/autoawq.py`.
"""

import torch
from torch import Tensor

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4.nibbles import bytes_of_codes, codes_of_words
from eagle_aot.targets.int4.weight import Int4Weight
from eagle_aot.targets.int4.word_packed import (
    check_bias,
    check_bits,
    read_scales,
    read_words,
    read_zeros,
)

SUFFIXES = ("qweight", "qzeros", "scales", "bias")
NIBBLE_OF_COLUMN = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])


def check_config(config: ConfigSection) -> None:
    """Refuse, in one sentence, every variant that `read_weight` would misread."""
    check_bits(config, "AWQ")
    version = config.text("version", "gemm").lower()
    if version != "gemm":
        raise UnsupportedError(f"AWQ version {version!r}: only 'gemm' is read")
    if not config.flag("zero_point", True):
        raise UnsupportedError("AWQ without zero points: only asymmetric weights are read")


def read_weight(checkpoint: Checkpoint, module: str) -> Int4Weight:
    """The INT4 weight of the linear called `module`, scale and zero point in float32.

    Raises CheckpointError when its tensors contradict one another.
    """
    words = read_words(checkpoint, f"{module}.qweight")
    columns, rows = words.shape[0], 8 * words.shape[1]
    scales = read_scales(checkpoint, module, rows, columns)
    zeros = _in_order(read_zeros(checkpoint, module, scales))
    check_bias(checkpoint, module)
    qdata = bytes_of_codes(_in_order(words).t()).contiguous()
    return Int4Weight(qdata, scales.contiguous(), zeros.float())


def _in_order(words: Tensor) -> Tensor:
    """Words [R, W] -> codes [R, 8 W], columns in their own order."""
    return codes_of_words(words).unflatten(1, (-1, 8))[..., NIBBLE_OF_COLUMN].flatten(1)
