"""GPTQ checkpoints, read into the canonical layout.

Per linear: `qweight` int32 [K / 8, N], packed along K, `qzeros` int32 [K / g, N / 8], packed along
N, both lowest nibble first, `scales` [K / g, N] and perhaps `g_idx` [K]; `w = (code - zero) *
scale`. The first version of the format stores zero - 1, in four bits: 15 there is zero 0. Columns
that are quantised in another order (`desc_act`) have a g_idx that is not k // g.
Source: GPTQModel 7.7 `nn_modules/qlinear`, `utils/model.py`.
"""

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4.nibbles import bytes_of_words, codes_of_words
from eagle_aot.targets.int4.weight import Int4Weight
from eagle_aot.targets.int4.word_packed import (
    check_bias,
    check_bits,
    read_scales,
    read_words,
    read_zeros,
)

SUFFIXES = ("qweight", "qzeros", "scales", "g_idx", "bias")
STORED_ZERO_OFFSET = {"gptq": 1, "gptq_v2": 0}
CODES = 16


def check_config(config: ConfigSection) -> None:
    """Refuse, in one sentence, every variant that `read_weight` would misread."""
    check_bits(config, "GPTQ")
    layout = config.text("checkpoint_format", "gptq")
    if layout not in STORED_ZERO_OFFSET:
        raise UnsupportedError(
            f"GPTQ checkpoint_format {layout!r}: only {' and '.join(STORED_ZERO_OFFSET)} are read"
        )


def read_weight(checkpoint: Checkpoint, module: str) -> Int4Weight:
    """The INT4 weight of the linear called `module`, scale and zero point in float32.

    Raises CheckpointError when its tensors contradict one another and UnsupportedError for
    act-order columns.
    """
    words = read_words(checkpoint, f"{module}.qweight")
    columns, rows = 8 * words.shape[0], words.shape[1]
    scales = read_scales(checkpoint, module, rows, columns)
    zeros = codes_of_words(read_zeros(checkpoint, module, scales))[:, :rows]
    offset = STORED_ZERO_OFFSET[checkpoint.quantization.text("checkpoint_format", "gptq")]
    _check_order(checkpoint, module, columns, columns // len(scales))
    check_bias(checkpoint, module)
    return Int4Weight(
        qdata=bytes_of_words(words.t()),
        scale=scales.contiguous(),
        zero_point=((zeros + offset) % CODES).float(),
    )


def _check_order(checkpoint: Checkpoint, module: str, columns: int, group_size: int) -> None:
    name = f"{module}.g_idx"
    if name not in checkpoint:
        if checkpoint.quantization.flag("desc_act"):
            raise CheckpointError(f"{name} is missing, the config says desc_act")
        return
    order: Tensor = checkpoint.tensor(name)
    if not torch.equal(order.long(), torch.arange(columns) // group_size):
        raise UnsupportedError(f"{name}: act-order columns; re-quantise without desc_act")
