"""AWQ and GPTQ checkpoints, read into the canonical layout.

AWQ, in the `gemm` packing, per linear: `qweight` int32 [K, N / 8], `qzeros` int32 [K / g, N / 8],
`scales` [K / g, N]. A word holds eight columns of N in the order 0, 2, 4, 6, 1, 3, 5, 7, lowest
nibble first; `w = (code - zero) * scale`. The scaling of activations is already folded into the
norms. Source: AutoAWQ `WQLinear_GEMM`; compressed-tensors 0.20 `converters/autoawq.py`.

GPTQ, per linear: `qweight` int32 [K / 8, N], packed along K, `qzeros` int32 [K / g, N / 8], packed
along N, both lowest bits first, `scales` [K / g, N] and perhaps `g_idx` [K];
`w = (code - zero) * scale`. With 8 bits a word holds four codes. The first version of the format
stores zero - 1, without a carry: in four bits 15 is zero 0. AutoGPTQ names the version
`checkpoint_format`, GPTQModel `format`. Columns that were quantised in the order of activations
(`desc_act`) have a g_idx other than k // g.
Source: GPTQModel 7.7 `nn_modules/qlinear`, `utils/model.py`, `quantization/config.py`.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.checkpoint import (
    BITS_KEYS,
    EXTRA,
    GROUP_KEYS,
    MODULES,
    VERSION_KEYS,
    Checkpoint,
)
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4.weight import Int4Weight, column_order, symmetric_zero, unpack_words

AWQ_SUFFIXES = ("qweight", "qzeros", "scales")
AWQ_NIBBLE_OF_COLUMN = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
GPTQ_SUFFIXES = ("qweight", "qzeros", "scales", "g_idx")
GPTQ_ZERO_OFFSET = {"gptq": 1, "gptq_v2": 0}
V2_PACKINGS = ("auto_round", "auto_round:gptqmodel")
"""Values of auto-round's packing_format that mean gptq_v2."""
OTHER_MATH = (
    *("rotation", "adapter"),  # of GPTQModel
    *("rotation_config", "spinquant_config"),  # of auto-round
)
"""Keys of Hadamard rotations of activations and of adapters that are added to the product."""
GPTQ_BITS = (4, 8)
LLM_AWQ = "llm-awq"


def check_awq(config: ConfigSection) -> None:
    """Raise UnsupportedError for every variant that `read_awq` would misread."""
    _check_bits(config, "AWQ", (4,))
    version = config.any_of(("version", *VERSION_KEYS), "gemm")
    if version != "gemm" or config.text("backend", "") == LLM_AWQ:
        name = version if version != "gemm" else LLM_AWQ
        raise UnsupportedError(f"AWQ version {name!r}: only 'gemm' is read")
    _refuse_other_math(config)


def read_awq(checkpoint: Checkpoint, module: str) -> Int4Weight:
    """Read the weight of the linear called `module`, scale and zero point as float32.

    Raises CheckpointError if its tensors contradict one another.
    """
    words = _read_words(checkpoint, f"{module}.qweight")
    columns, rows = words.shape[0], 8 * words.shape[1]
    scales = _read_scales(checkpoint, module, rows, columns)
    config = module_config(checkpoint.quantization, module)
    symmetric = not config.flag("zero_point", not config.flag("sym"))
    if symmetric and f"{module}.qzeros" not in checkpoint:
        zeros = torch.full_like(scales, symmetric_zero(4))
    else:
        zeros = _unpack_awq(_read_zeros(checkpoint, module, scales, 4)).float()
    if symmetric:
        _check_symmetric(zeros, 4, module, "gemm")
    return Int4Weight.of_codes(_unpack_awq(words).t(), scales.contiguous(), zeros, 4)


def _unpack_awq(words: Tensor) -> Tensor:
    """Unpack int32 words [R, W] to uint8 codes [R, 8 W], with columns in order."""
    return unpack_words(words, 4).unflatten(1, (-1, 8))[..., AWQ_NIBBLE_OF_COLUMN].flatten(1)


def check_gptq(config: ConfigSection) -> None:
    """Raise UnsupportedError for every variant that `read_gptq` would misread."""
    _check_bits(config, "GPTQ", GPTQ_BITS)
    version = _gptq_version(config)
    if version not in GPTQ_ZERO_OFFSET:
        raise UnsupportedError(
            f"GPTQ format {version!r}: only {' and '.join(GPTQ_ZERO_OFFSET)} are read"
        )
    if config.flag("is_marlin_format"):
        raise UnsupportedError("GPTQ with is_marlin_format: only gptq and gptq_v2 are read")
    _refuse_other_math(config)


def _gptq_version(config: ConfigSection) -> str:
    default = "gptq_v2" if config.text("packing_format", "") in V2_PACKINGS else "gptq"
    return str(config.any_of(VERSION_KEYS, default))


def module_config(config: ConfigSection, module: str) -> ConfigSection:
    """Return the config with what it says of the linear called `module` alone.

    Raises CheckpointError for an expression that is none.
    """
    dynamic, extra = config.section(MODULES), config.section(EXTRA)
    patterns = [
        p for p in dynamic.values if _matches(re.match, p.removeprefix("+:"), module, config)
    ]
    overrides = {**dynamic.section(patterns[0]).values} if patterns else {}
    names = [module] if extra.has(module) else list(extra.values)
    names = [p for p in names if p == module or _matches(re.search, p, module, config)]
    overrides |= extra.section(names[0]).values if names else {}
    spelled = [keys for keys in (BITS_KEYS, GROUP_KEYS) if any(key in overrides for key in keys)]
    replaced = {key for keys in spelled for key in keys}
    values = {key: value for key, value in config.values.items() if key not in replaced}
    return ConfigSection(values | overrides, config.where)


def _matches(
    match: Callable[[str, str], object], pattern: str, module: str, config: ConfigSection
) -> bool:
    try:
        return match(pattern, module) is not None
    except re.error as error:
        raise CheckpointError(f"{config.where}: expression {pattern!r}: {error}") from error


def gptq_bits(checkpoint: Checkpoint, module: str) -> int:
    """Return the bits of the linear called `module`. Raises UnsupportedError unless 4 or 8."""
    return _module_bits(checkpoint, module, GPTQ_BITS)


def awq_bits(checkpoint: Checkpoint, module: str) -> int:
    """Return the bits of the linear called `module`. Raises UnsupportedError unless 4."""
    return _module_bits(checkpoint, module, (4,))


def _module_bits(checkpoint: Checkpoint, module: str, supported: Sequence[int]) -> int:
    config = checkpoint.quantization
    bits = _integer(module_config(config, module), BITS_KEYS, None)
    if bits not in supported:
        raise UnsupportedError(
            f"{config.where}: {module} has {bits} bits: only {_either(supported)} are read"
        )
    return int(bits)


def read_gptq(checkpoint: Checkpoint, module: str) -> Int4Weight:
    """Read the weight of the linear called `module`, scale and zero point as float32.

    Raises CheckpointError if its tensors contradict one another and UnsupportedError for other
    bits than 4 and 8.
    """
    bits = gptq_bits(checkpoint, module)
    words = _read_words(checkpoint, f"{module}.qweight")
    columns, rows = 32 // bits * words.shape[0], words.shape[1]
    scales = _read_scales(checkpoint, module, rows, columns)
    zeros = _gptq_zeros(checkpoint, module, scales, bits)
    order = _gptq_order(checkpoint, module, columns, columns // len(scales))
    codes = unpack_words(words.t(), bits)
    return Int4Weight.of_codes(codes, scales.contiguous(), zeros.float(), bits, order)


def _gptq_zeros(checkpoint: Checkpoint, module: str, scales: Tensor, bits: int) -> Tensor:
    """Read the zero points uint8 [K / g, N] for `scales` [K / g, N].

    Raises CheckpointError if the version of the format is another one than the config says: if it
    says `sym` and they are not those of symmetric weights, or if all are in the other version.
    """
    config = module_config(checkpoint.quantization, module)
    version = _gptq_version(config)
    stored = unpack_words(_read_zeros(checkpoint, module, scales, bits), bits)
    zeros = (stored[:, : scales.shape[1]].int() + GPTQ_ZERO_OFFSET[version]) % 2**bits
    (other,) = GPTQ_ZERO_OFFSET.keys() - {version}
    shift = GPTQ_ZERO_OFFSET[version] - GPTQ_ZERO_OFFSET[other]
    if (zeros == symmetric_zero(bits) + shift).all():
        key = " and ".join(filter(config.has, VERSION_KEYS)) or VERSION_KEYS[0]
        raise CheckpointError(
            f"{module}.qzeros: a zero point of {int(zeros[0, 0])} in the format {version!r}, but "
            f"symmetric weights have {symmetric_zero(bits)}: set {key} to {other!r} in "
            f"{config.where}"
        )
    if config.flag("sym"):
        _check_symmetric(zeros, bits, module, version)
    return zeros


def _check_symmetric(zeros: Tensor, bits: int, module: str, version: str) -> None:
    """Raise CheckpointError unless all zero points [K / g, N] are those of symmetric weights."""
    expected = symmetric_zero(bits)
    if not (zeros == expected).all():
        wrong = int(zeros[zeros != expected][0])
        raise CheckpointError(
            f"{module}.qzeros: a zero point of {wrong} in the format {version!r}, but symmetric "
            f"weights (sym) have {expected}: is checkpoint_format right?"
        )


def _gptq_order(
    checkpoint: Checkpoint, module: str, columns: int, group_size: int
) -> Tensor | None:
    """Read the order int64 [K] of columns, None if they are in order. Raises CheckpointError."""
    name = f"{module}.g_idx"
    if name not in checkpoint:
        if checkpoint.quantization.flag("desc_act"):
            raise CheckpointError(f"{name} is missing, the config says desc_act")
        return None
    return column_order(checkpoint.tensor(name), columns, group_size, name)


def _check_bits(config: ConfigSection, method: str, supported: Sequence[int]) -> None:
    """Raise UnsupportedError unless the config says one of the `supported` numbers of bits."""
    bits = _integer(config, BITS_KEYS, None)
    if bits not in supported:
        raise UnsupportedError(f"{method} with {bits} bits: only {_either(supported)} are read")


def _integer(config: ConfigSection, keys: Sequence[str], default: int | None) -> Any:
    """Return the value of any of `keys`. Raises CheckpointError for a number in quotes."""
    value = config.any_of(keys, default)
    if isinstance(value, str):
        key = next(key for key in keys if config.has(key))
        raise CheckpointError(f"{config.where}: {key} is {value!r}, a string: expected an integer")
    return value


def _either(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))


def _refuse_other_math(config: ConfigSection) -> None:
    """Raise UnsupportedError for what changes the product apart from codes, scales and zeros."""
    for key in OTHER_MATH:
        if config.values.get(key):
            raise UnsupportedError(f"{config.where}: {key}: only plain INT4 weights are read")
    if (bits := config.count("act_bits", 16)) < 16:
        raise UnsupportedError(f"{config.where}: act_bits {bits}: only weight-only is read")
    if (kind := config.text("data_type", "int")) != "int":
        raise UnsupportedError(f"{config.where}: data_type {kind!r}: only 'int' is read")


def _read_words(checkpoint: Checkpoint, name: str) -> Tensor:
    """Read an int32 matrix [R, W]. Raises CheckpointError for any other tensor."""
    words = checkpoint.tensor(name)
    if words.dtype != torch.int32 or words.ndim != 2:
        raise CheckpointError(f"{name}: {words.dtype} {list(words.shape)}, not an int32 matrix")
    return words


def _read_scales(checkpoint: Checkpoint, module: str, rows: int, columns: int) -> Tensor:
    """Read scales float32 [K / g, N] of a weight [N, K]; g must be the config's, if it has one."""
    name = f"{module}.scales"
    scales = checkpoint.tensor(name)
    groups = scales.shape[0] if scales.ndim == 2 else 0
    fits = groups and scales.shape[1] == rows and columns % groups == 0
    if not scales.is_floating_point() or not fits:
        raise CheckpointError(
            f"{name}: {scales.dtype} {list(scales.shape)} for a weight [{rows}, {columns}]"
        )
    group_size = _integer(module_config(checkpoint.quantization, module), GROUP_KEYS, -1)
    if group_size not in (-1, columns // groups):
        raise CheckpointError(
            f"{name}: groups of {columns // groups}, the config says {group_size}"
        )
    if not torch.isfinite(scales).all():
        raise CheckpointError(f"{name}: holds NaN or infinite values")
    return scales.float()


def _read_zeros(checkpoint: Checkpoint, module: str, scales: Tensor, bits: int) -> Tensor:
    """Read the words of `qzeros` int32 [K / g, N bits / 32] for `scales` [K / g, N]."""
    words = _read_words(checkpoint, f"{module}.qzeros")
    if words.shape != (scales.shape[0], -(-scales.shape[1] * bits // 32)):
        raise CheckpointError(
            f"{module}.qzeros: {list(words.shape)} for scales {list(scales.shape)}"
        )
    return words
