"""What AWQ and GPTQ have in common: `qweight`, `qzeros` and `scales` of a linear."""

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection


def check_bits(config: ConfigSection, method: str) -> None:
    """Raise UnsupportedError unless the config says 4 bits."""
    bits = config.values.get("bits", config.values.get("w_bit"))
    if bits != 4:
        raise UnsupportedError(f"{method} with {bits} bits: only 4 are read")


def read_words(checkpoint: Checkpoint, name: str) -> Tensor:
    """An int32 matrix of eight codes a word. Raises CheckpointError for anything else."""
    words = checkpoint.tensor(name)
    if words.dtype != torch.int32 or words.ndim != 2:
        raise CheckpointError(f"{name}: {words.dtype} {list(words.shape)}, not an int32 matrix")
    return words


def read_scales(checkpoint: Checkpoint, module: str, rows: int, columns: int) -> Tensor:
    """Scales float32 [K / g, N] of a weight [N, K], whose g is the config's if that says one."""
    name = f"{module}.scales"
    scales = checkpoint.tensor(name)
    groups = scales.shape[0] if scales.ndim == 2 else 0
    fits = groups and scales.shape[1] == rows and columns % groups == 0
    if not scales.is_floating_point() or not fits:
        raise CheckpointError(
            f"{name}: {scales.dtype} {list(scales.shape)} for a weight [{rows}, {columns}]"
        )
    said = checkpoint.quantization.values.get("group_size", -1)
    if said not in (-1, columns // groups):
        raise CheckpointError(f"{name}: groups of {columns // groups}, the config says {said}")
    if not torch.isfinite(scales).all():
        raise CheckpointError(f"{name}: holds NaN or infinite values")
    return scales.float()


def read_zeros(checkpoint: Checkpoint, module: str, scales: Tensor) -> Tensor:
    """The words of `qzeros` [K / g, N / 8] that go with `scales`."""
    words = read_words(checkpoint, f"{module}.qzeros")
    if words.shape != (scales.shape[0], -(-scales.shape[1] // 8)):
        raise CheckpointError(
            f"{module}.qzeros: {list(words.shape)} for scales {list(scales.shape)}"
        )
    return words


def check_bias(checkpoint: Checkpoint, module: str) -> None:
    """Some writers give every linear a bias of zeros. Raise UnsupportedError for another."""
    name = f"{module}.bias"
    if name in checkpoint and checkpoint.tensor(name).any():
        raise UnsupportedError(f"{name}: biases of INT4 linears are not supported")
