"""compressed-tensors `pack-quantized` W4A16 checkpoints, read into the canonical layout.

Per linear: `weight_packed` int32 [N, K / 8], element k in bits 4 * (k mod 8) of word k / 8, stored
as q + 8; `weight_scale` [N, K / g]; `weight_shape` int64 [2]; asymmetric weights also
`weight_zero_point` int32 [N / 8, K / g], packed the same way along N. Little-endian words make
`weight_packed` the canonical `qdata` byte for byte.
Source: compressed-tensors 0.20, `compressors/pack_quantized`.
"""

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4.weight import Int4Weight, bytes_of_words, codes_of_words

SUFFIXES = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
SYMMETRIC_ZERO = 8.0


def check_config(config: ConfigSection) -> None:
    """Raise UnsupportedError for every scheme that `read_weight` would misread."""
    if config.has("kv_cache_scheme"):
        raise UnsupportedError("compressed-tensors kv_cache_scheme: a quantised KV cache")
    groups = config.section("config_groups")
    for name in groups.values:
        _check_group(name, groups.section(name), config.text("format", ""))


def read_weight(checkpoint: Checkpoint, module: str) -> Int4Weight:
    """Read the weight of the linear called `module`, scale and zero point as float32.

    Raises CheckpointError if its tensors contradict one another and UnsupportedError for act-order
    columns.
    """
    packed = checkpoint.tensor(f"{module}.weight_packed")
    scale = checkpoint.tensor(f"{module}.weight_scale").float()
    shape = checkpoint.tensor(f"{module}.weight_shape").flatten().tolist()
    if len(shape) != 2:
        raise CheckpointError(f"{module}.weight_shape: {shape} is not [rows, columns]")
    rows, columns = map(int, shape)
    if packed.dtype != torch.int32 or packed.shape != (rows, columns // 8) or columns % 8:
        raise CheckpointError(
            f"{module}.weight_packed: {packed.dtype} {list(packed.shape)} does not hold "
            f"[{rows}, {columns}] INT4 values"
        )
    groups = scale.shape[1] if scale.ndim == 2 else 0
    if not groups or scale.shape[0] != rows or columns % groups:
        raise CheckpointError(f"{module}.weight_scale: {list(scale.shape)} for {rows}x{columns}")
    if not torch.isfinite(scale).all():
        raise CheckpointError(f"{module}.weight_scale: holds NaN or infinite values")
    _check_order(checkpoint, module, columns // groups)
    return Int4Weight(
        qdata=bytes_of_words(packed),
        scale=scale.t().contiguous(),
        zero_point=_zero_point(checkpoint, module, scale.shape),
    )


def _zero_point(checkpoint: Checkpoint, module: str, scale_shape: torch.Size) -> Tensor:
    rows, groups = scale_shape
    name = f"{module}.weight_zero_point"
    if name not in checkpoint and not _all_asymmetric(checkpoint.quantization):
        return torch.full((groups, rows), SYMMETRIC_ZERO)
    words = checkpoint.tensor(name)
    if words.dtype != torch.int32 or words.shape != (-(-rows // 8), groups):
        raise CheckpointError(f"{name}: {words.dtype} {list(words.shape)} for {rows} rows")
    return codes_of_words(words.t())[:, :rows].float()


def _all_asymmetric(config: ConfigSection) -> bool:
    groups = config.section("config_groups")
    weights = [groups.section(name).section("weights") for name in groups.values]
    return bool(weights) and not any(w.flag("symmetric", True) for w in weights)


def _check_order(checkpoint: Checkpoint, module: str, group_size: int) -> None:
    name = f"{module}.weight_g_idx"
    if name not in checkpoint:
        return
    order = checkpoint.tensor(name)
    if not torch.equal(order.long(), torch.arange(len(order)) // group_size):
        raise UnsupportedError(f"{name}: act-order columns; re-quantise without act-order")


def _check_group(name: str, group: ConfigSection, default_format: str) -> None:
    label = f"compressed-tensors group {name!r}"
    weights = group.section("weights")
    layout = group.text("format", default_format)
    if layout != "pack-quantized":
        raise UnsupportedError(f"{label}: format {layout!r}, only 'pack-quantized' is read")
    if weights.values.get("num_bits") != 4 or weights.values.get("type") != "int":
        kind = f"{weights.values.get('type')}{weights.values.get('num_bits')}"
        raise UnsupportedError(f"{label}: {kind} weights, only int4 is read")
    strategy = weights.text("strategy", "")
    if strategy not in ("group", "channel"):
        raise UnsupportedError(f"{label}: strategy {strategy!r}")
    if group.has("input_activations") or group.has("output_activations"):
        raise UnsupportedError(f"{label}: quantised activations, only weight-only is read")
