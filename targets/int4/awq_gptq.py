"""AWQ and GPTQ checkpoints, read into the canonical layout.

AWQ, in the `gemm` packing, per linear: `qweight` int32 [K, N / 8], `qzeros` int32 [K / g, N / 8],
`scales` [K / g, N]. A word holds eight columns of N in the order 0, 2, 4, 6, 1, 3, 5, 7, lowest
nibble first; `w = (code - zero) * scale`. The scaling of activations is already folded into the
norms. Source: AutoAWQ `WQLinear_GEMM`; compressed-tensors 0.20 `converters/autoawq.py`.

GPTQ, per linear: `qweight` int32 [K / 8, N], packed along K, `qzeros` int32 [K / g, N / 8], packed
along N, both lowest nibble first, `scales` [K / g, N] and perhaps `g_idx` [K];
`w = (code - zero) * scale`. The first version of the format stores zero - 1, in four bits: 15 is
zero 0. AutoGPTQ names the version `checkpoint_format`, GPTQModel `format`. Columns that were
quantised in another order (`desc_act`) have a g_idx other than k // g.
Source: GPTQModel 7.7 `nn_modules/qlinear`, `utils/model.py`, `quantization/config.py`.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4.weight import Int4Weight, bytes_of_codes, bytes_of_words, codes_of_words

AWQ_SUFFIXES = ("qweight", "qzeros", "scales")
AWQ_NIBBLE_OF_COLUMN = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
GPTQ_SUFFIXES = ("qweight", "qzeros", "scales", "g_idx")
GPTQ_ZERO_OFFSET = {"gptq": 1, "gptq_v2": 0}
VERSION_KEYS = ("checkpoint_format", "format")
BITS_KEYS = ("bits", "w_bit", "wbits")
GROUP_KEYS = ("group_size", "q_group_size")
"""Spellings of AutoGPTQ, AutoAWQ, GPTQModel and GPTQ-for-LLaMa."""
MODULES, EXTRA = "dynamic", "extra_config"
"""What GPTQModel (by expressions) and auto-round (by names) say of single modules."""
CODES = 16
SYMMETRIC_ZERO = 8


def check_awq(config: ConfigSection) -> None:
    """Raise UnsupportedError for every variant that `read_awq` would misread."""
    _check_bits(config, "AWQ")
    version = _one_of(config, ("version", *VERSION_KEYS), "gemm")
    if version != "gemm":
        raise UnsupportedError(f"AWQ version {version!r}: only 'gemm' is read")
    if not config.flag("zero_point", True):
        raise UnsupportedError("AWQ without zero points: only asymmetric weights are read")


def read_awq(checkpoint: Checkpoint, module: str) -> Int4Weight:
    """Read the weight of the linear called `module`, scale and zero point as float32.

    Raises CheckpointError if its tensors contradict one another.
    """
    words = _read_words(checkpoint, f"{module}.qweight")
    columns, rows = words.shape[0], 8 * words.shape[1]
    scales = _read_scales(checkpoint, module, rows, columns)
    zeros = _unpack_awq(_read_zeros(checkpoint, module, scales))
    qdata = bytes_of_codes(_unpack_awq(words).t()).contiguous()
    return Int4Weight(qdata, scales.contiguous(), zeros.float())


def _unpack_awq(words: Tensor) -> Tensor:
    """Unpack int32 words [R, W] to uint8 codes [R, 8 W], with columns in order."""
    return codes_of_words(words).unflatten(1, (-1, 8))[..., AWQ_NIBBLE_OF_COLUMN].flatten(1)


def check_gptq(config: ConfigSection) -> None:
    """Raise UnsupportedError for every variant that `read_gptq` would misread."""
    _check_bits(config, "GPTQ")
    version = _one_of(config, VERSION_KEYS, "gptq")
    if version not in GPTQ_ZERO_OFFSET:
        raise UnsupportedError(
            f"GPTQ format {version!r}: only {' and '.join(GPTQ_ZERO_OFFSET)} are read"
        )


def module_config(config: ConfigSection, module: str) -> ConfigSection:
    """Return the config with what it says of the linear called `module` alone.

    Raises CheckpointError for an expression that is none.
    """
    try:
        patterns = config.section(MODULES).values
        matches = [p for p in patterns if re.match(p.removeprefix("+:"), module)]
    except re.error as error:
        raise CheckpointError(f"{config.where}: {MODULES}: {error}") from error
    overrides = config.section(MODULES).section(matches[0]).values if matches else {}
    overrides = {**overrides, **config.section(EXTRA).section(module).values}
    spelled = [keys for keys in (BITS_KEYS, GROUP_KEYS) if any(key in overrides for key in keys)]
    replaced = {key for keys in spelled for key in keys}
    values = {key: value for key, value in config.values.items() if key not in replaced}
    return ConfigSection(values | overrides, config.where)


def check_module(config: ConfigSection, module: str) -> None:
    """Raise UnsupportedError unless the linear called `module` has 4 bits."""
    bits = _one_of(module_config(config, module), BITS_KEYS, None)
    if bits != 4:
        raise UnsupportedError(f"{config.where}: {module} has {bits} bits: only 4 are read")


def read_gptq(checkpoint: Checkpoint, module: str) -> Int4Weight:
    """Read the weight of the linear called `module`, scale and zero point as float32.

    Raises CheckpointError if its tensors contradict one another and UnsupportedError for act-order
    columns.
    """
    words = _read_words(checkpoint, f"{module}.qweight")
    columns, rows = 8 * words.shape[0], words.shape[1]
    scales = _read_scales(checkpoint, module, rows, columns)
    zeros = _gptq_zeros(checkpoint, module, scales)
    _check_gptq_order(checkpoint, module, columns, columns // len(scales))
    return Int4Weight(
        qdata=bytes_of_words(words.t()), scale=scales.contiguous(), zero_point=zeros.float()
    )


def _gptq_zeros(checkpoint: Checkpoint, module: str, scales: Tensor) -> Tensor:
    """Read the zero points uint8 [K / g, N] for `scales` [K / g, N].

    Raises CheckpointError if the config says `sym` and they are not those of symmetric weights:
    then the version of the format is another one than the config says.
    """
    config = module_config(checkpoint.quantization, module)
    version = _one_of(config, VERSION_KEYS, "gptq")
    stored = codes_of_words(_read_zeros(checkpoint, module, scales))[:, : scales.shape[1]]
    zeros = (stored + GPTQ_ZERO_OFFSET[version]) % CODES
    if config.flag("sym") and not (zeros == SYMMETRIC_ZERO).all():
        wrong = zeros[zeros != SYMMETRIC_ZERO][0].item()
        raise CheckpointError(
            f"{module}.qzeros: a zero point of {wrong} in the format {version!r}, but symmetric "
            f"weights (sym) have {SYMMETRIC_ZERO}: is checkpoint_format right?"
        )
    return zeros


def _check_gptq_order(checkpoint: Checkpoint, module: str, columns: int, group_size: int) -> None:
    name = f"{module}.g_idx"
    if name not in checkpoint:
        if checkpoint.quantization.flag("desc_act"):
            raise CheckpointError(f"{name} is missing, the config says desc_act")
        return
    order: Tensor = checkpoint.tensor(name)
    if not torch.equal(order.long(), torch.arange(columns) // group_size):
        raise UnsupportedError(f"{name}: act-order columns; re-quantise without desc_act")


def _check_bits(config: ConfigSection, method: str) -> None:
    """Raise UnsupportedError unless the config says 4 bits."""
    bits = _one_of(config, BITS_KEYS, None)
    if bits != 4:
        raise UnsupportedError(f"{method} with {bits} bits: only 4 are read")


def _one_of(config: ConfigSection, keys: Sequence[str], default: Any) -> Any:
    """Return the value that a fact has under any of its `keys`, text in lower case.

    Raises CheckpointError if two keys contradict each other.
    """
    values = {key: config.values[key] for key in keys if config.has(key)}
    values = {key: v.lower() if isinstance(v, str) else v for key, v in values.items()}
    if len(set(map(str, values.values()))) > 1:
        said = " and ".join(f"{key} {value!r}" for key, value in values.items())
        raise CheckpointError(f"{config.where}: {said} contradict each other")
    return next(iter(values.values()), default)


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
    group_size = _one_of(module_config(checkpoint.quantization, module), GROUP_KEYS, -1)
    if group_size not in (-1, columns // groups):
        raise CheckpointError(
            f"{name}: groups of {columns // groups}, the config says {group_size}"
        )
    if not torch.isfinite(scales).all():
        raise CheckpointError(f"{name}: holds NaN or infinite values")
    return scales.float()


def _read_zeros(checkpoint: Checkpoint, module: str, scales: Tensor) -> Tensor:
    """Read the words of `qzeros` int32 [K / g, N / 8] for `scales` [K / g, N]."""
    words = _read_words(checkpoint, f"{module}.qzeros")
    if words.shape != (scales.shape[0], -(-scales.shape[1] // 8)):
        raise CheckpointError(
            f"{module}.qzeros: {list(words.shape)} for scales {list(scales.shape)}"
        )
    return words
