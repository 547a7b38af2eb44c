"""Fill a decoder from a checkpoint, strictly: nothing unread, nothing unfilled.

A module's tensors are looked up under its own name, so a family's modules are named as the
checkpoint names them and a `prefix` is all the mapping there is.
"""

import torch
from torch import Tensor, nn

from eagle_aot.errors import CheckpointError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.int4 import Int4Linear, compressed_tensors
from eagle_aot.targets.int4.weight import random_int4

DUMMY_EMBEDDING = 1 / 16
"""Small, so that what layers add to the stream decides the next token: where the output table is
the embedding too, a stream that is mostly its own token would repeat it for ever."""


def load_weights(
    model: nn.Module,
    checkpoint: Checkpoint,
    prefix: str,
    unused: tuple[str, ...],
    dtype: torch.dtype,
) -> None:
    """Fill every linear, parameter and persistent buffer of `model` from the checkpoint.

    A linear becomes an `Int4Linear` where the checkpoint holds packed values. Tensors whose names
    start with one of `unused` are known and not needed; any other tensor left over raises
    CheckpointError, as do a missing tensor and a wrong shape.
    """
    used: set[str] = set()
    for name, module in list(model.named_modules()):
        stored = stored_name(name, prefix)
        if isinstance(module, nn.Linear) and f"{stored}.weight_packed" in checkpoint:
            used |= {f"{stored}.{suffix}" for suffix in compressed_tensors.SUFFIXES}
            replace_linear(model, name, _int4_linear(checkpoint, stored, module, dtype))
    for name, current in model.state_dict().items():
        if isinstance(model.get_submodule(name.rpartition(".")[0]), Int4Linear):
            continue
        stored = stored_name(name, prefix)
        used.add(stored)
        assign(model, name, checked(checkpoint, stored, current.shape, dtype))
    left = [n for n in checkpoint.names() if n not in used and not n.startswith(unused)]
    if left:
        raise CheckpointError(f"{checkpoint.directory}: unknown tensors {', '.join(left[:5])}")


def fill_dummy(model: nn.Module, group_size: int, dtype: torch.dtype) -> None:
    """Give every linear random INT4 weights and every table random rows.

    Under a fake-tensor mode nothing is materialised.
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            weight = random_int4(module.out_features, module.in_features, group_size, dtype)
            replace_linear(model, name, Int4Linear(weight, dtype))
        elif isinstance(module, nn.Embedding):
            scale = DUMMY_EMBEDDING * module.embedding_dim**-0.5
            rows = torch.randn(module.weight.shape, dtype=dtype) * scale
            assign(model, f"{name}.weight", rows)


def stored_name(name: str, prefix: str) -> str:
    """The checkpoint's name of a tensor or module of ours: the output table has no prefix."""
    return name if name.startswith("lm_head") else prefix + name


def checked(checkpoint: Checkpoint, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A tensor of the checkpoint as `dtype`.

    Raises CheckpointError unless it has `shape` and is of the same kind, float or integer.
    """
    tensor = checkpoint.tensor(name)
    if tensor.shape != shape:
        raise CheckpointError(
            f"{checkpoint.directory}: {name} is {list(tensor.shape)}, "
            f"config.json says {list(shape)}"
        )
    if tensor.is_floating_point() != dtype.is_floating_point or tensor.dtype == torch.bool:
        raise CheckpointError(f"{checkpoint.directory}: {name} holds {tensor.dtype} values")
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise CheckpointError(f"{checkpoint.directory}: {name} holds NaN or infinite values")
    return tensor.to(dtype)


def assign(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Put `tensor` in place of a parameter or buffer, whatever storage that had."""
    owner_name, _, leaf = name.rpartition(".")
    owner = model.get_submodule(owner_name)
    if leaf in owner._parameters:
        setattr(owner, leaf, nn.Parameter(tensor, requires_grad=False))
    else:
        setattr(owner, leaf, tensor)


def replace_linear(model: nn.Module, name: str, linear: nn.Module) -> None:
    """Swap the submodule called `name`."""
    owner_name, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner_name), leaf, linear)


def _int4_linear(
    checkpoint: Checkpoint, stored: str, linear: nn.Linear, dtype: torch.dtype
) -> Int4Linear:
    weight = compressed_tensors.read_weight(checkpoint, stored)
    if weight.shape != (linear.out_features, linear.in_features):
        raise CheckpointError(
            f"{checkpoint.directory}: {stored} is {list(weight.shape)}, config.json says "
            f"[{linear.out_features}, {linear.in_features}]"
        )
    return Int4Linear(weight, dtype)
