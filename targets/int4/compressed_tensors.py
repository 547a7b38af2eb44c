"""compressed-tensors `pack-quantized` weight-only checkpoints, read into the canonical layout.

Per linear: `weight_packed` int32 [N, K / 8], element k in bits 4 * (k mod 8) of word k / 8, stored
as q + 8; with 8 bits [N, K / 4], stored as q + 128. `weight_scale` [N, K / g]; `weight_shape`
int64 [2]. Asymmetric weights also have `weight_zero_point`: int32 [N / 8, K / g], packed the same
way along N, or int8 [N, K / g] as older versions store it. `weight_g_idx` [K], of older versions,
is the group of each column; -1 everywhere means that they are in order.
Source: compressed-tensors 0.6, 0.9 and 0.20, `compressors/pack_quantized`.
"""

import re

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4.weight import Int4Weight, column_order, symmetric_zero, unpack_words

SUFFIXES = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
BITS = (4, 8)
LINEAR = "Linear"
EXPRESSION = "re:"
GROUP_ORDERS = ("group", "dynamic", True)
"""Values of `actorder` with which groups are not of consecutive columns."""
UNSET = -1
FUSED = ("weight_input", "weight_output")
"""Where rotations are part of the stored weights."""


def check_config(config: ConfigSection) -> None:
    """Raise UnsupportedError for every scheme that `read_weight` would misread."""
    transforms = config.section("transform_config").section("config_groups")
    for name in transforms.values:
        applied = transforms.section(name).values.get("apply")
        places = applied if isinstance(applied, list) else [applied]
        if not all(isinstance(p, dict) and p.get("location") in FUSED for p in places):
            raise UnsupportedError(f"compressed-tensors transform {name!r}: rotated activations")
    groups = config.section("config_groups")
    for name in groups.values:
        _check_group(name, groups.section(name), config.text("format", ""))


def stored_bits(checkpoint: Checkpoint, module: str) -> int:
    """Return the bits of the linear called `module`, from its tensors. Raises CheckpointError."""
    shape = checkpoint.tensor(f"{module}.weight_shape").flatten().tolist()
    packed = checkpoint.shape(f"{module}.weight_packed")
    if len(shape) != 2:
        raise CheckpointError(f"{module}.weight_shape: {shape} is not [rows, columns]")
    fitting = [bits for bits in BITS if packed == (shape[0], -(-shape[1] * bits // 32))]
    if not fitting or shape[1] % (32 // fitting[0]):
        raise CheckpointError(
            f"{module}.weight_packed: {list(packed)} does not hold {shape} INT4 or INT8 values"
        )
    return fitting[0]


def read_weight(checkpoint: Checkpoint, module: str) -> Int4Weight:
    """Read the weight of the linear called `module`, scale and zero point as float32.

    Raises CheckpointError if its tensors contradict one another.
    """
    bits = stored_bits(checkpoint, module)
    packed = checkpoint.tensor(f"{module}.weight_packed")
    scale = checkpoint.tensor(f"{module}.weight_scale").float()
    rows, columns = len(packed), packed.shape[1] * (32 // bits)
    if packed.dtype != torch.int32:
        raise CheckpointError(
            f"{module}.weight_packed: {packed.dtype} does not hold [{rows}, {columns}] INT{bits} "
            "values"
        )
    groups = scale.shape[1] if scale.ndim == 2 else 0
    if not groups or scale.shape[0] != rows or columns % groups:
        raise CheckpointError(f"{module}.weight_scale: {list(scale.shape)} for {rows}x{columns}")
    if not torch.isfinite(scale).all():
        raise CheckpointError(f"{module}.weight_scale: holds NaN or infinite values")
    zero = _zero_point(checkpoint, module, scale.shape, bits)
    order = _order(checkpoint, module, columns, columns // groups)
    codes = unpack_words(packed, bits)
    return Int4Weight.of_codes(codes, scale.t().contiguous(), zero.t().contiguous(), bits, order)


def scheme_of(config: ConfigSection, module: str) -> ConfigSection:
    """Return the config of the weights of `module`: the group that names it, else the one with an
    expression for it, else the one for all linears. Empty if there is none."""
    groups = config.section("config_groups")
    sections = [groups.section(name) for name in groups.values]
    for matches in (_is_name, _is_match, _is_class):
        for section in sections:
            if section.has("targets") and any(matches(t, module) for t in section.texts("targets")):
                return section.section("weights")
    return ConfigSection({}, config.where)


def _is_name(target: str, module: str) -> bool:
    return target == module


def _is_match(target: str, module: str) -> bool:
    try:
        pattern = target.removeprefix(EXPRESSION)
        return target.startswith(EXPRESSION) and re.match(pattern, module) is not None
    except re.error as error:
        raise CheckpointError(f"config_groups: target {target!r}: {error}") from error


def _is_class(target: str, module: str) -> bool:
    return target == LINEAR


def _zero_point(checkpoint: Checkpoint, module: str, shape: torch.Size, bits: int) -> Tensor:
    """Read the zero points float32 [N, K / g] of unsigned codes.

    Raises CheckpointError if the config says `symmetric` and they are not those of symmetric
    weights; all zero they say nothing.
    """
    name, default = f"{module}.weight_zero_point", float(symmetric_zero(bits))
    symmetric = scheme_of(checkpoint.quantization, module).values.get("symmetric")
    if name not in checkpoint and symmetric is not False:
        return torch.full(shape, default)
    stored = checkpoint.tensor(name)
    if symmetric and stored.dtype in (torch.int8, torch.int32) and not stored.any():
        return torch.full(shape, default)
    rows, groups = shape
    if stored.dtype == torch.int8 and stored.shape == shape:
        zero = stored.float() + default
    elif stored.dtype == torch.int32 and stored.shape == (-(-rows * bits // 32), groups):
        zero = unpack_words(stored.t(), bits).t()[:rows].float()
    else:
        raise CheckpointError(f"{name}: {stored.dtype} {list(stored.shape)} for {rows} rows")
    if symmetric and not (zero == default).all():
        raise CheckpointError(f"{name}: not those of symmetric weights, as config.json says")
    return zero


def _order(checkpoint: Checkpoint, module: str, columns: int, group_size: int) -> Tensor | None:
    """Read the order int64 [K] of columns, None if they are in order. Raises CheckpointError."""
    name = f"{module}.weight_g_idx"
    if name not in checkpoint:
        if scheme_of(checkpoint.quantization, module).values.get("actorder") in GROUP_ORDERS:
            raise CheckpointError(f"{name} is missing, the config says actorder")
        return None
    groups = checkpoint.tensor(name)
    if not groups.is_floating_point() and (groups == UNSET).all():
        return None
    return column_order(groups, columns, group_size, name)


def _check_group(name: str, group: ConfigSection, default_format: str) -> None:
    label = f"compressed-tensors group {name!r}"
    weights = group.section("weights")
    layout = group.text("format", default_format)
    if layout != "pack-quantized":
        raise UnsupportedError(f"{label}: format {layout!r}, only 'pack-quantized' is read")
    if weights.values.get("num_bits") not in BITS or weights.values.get("type") != "int":
        kind = f"{weights.values.get('type')}{weights.values.get('num_bits')}"
        raise UnsupportedError(f"{label}: {kind} weights, only int4 and int8 are read")
    strategy = weights.text("strategy", "")
    if strategy not in ("group", "channel"):
        raise UnsupportedError(f"{label}: strategy {strategy!r}")
    if group.has("input_activations") or group.has("output_activations"):
        raise UnsupportedError(f"{label}: quantized activations, only weight-only is read")
