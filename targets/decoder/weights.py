"""Fill a decoder from a checkpoint, strictly: nothing unread, nothing unfilled.

A module's tensors are looked up under its own name, so a family's modules are named as the
checkpoint names them and a `prefix` is all the mapping there is.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.int4 import Int4Linear, Int4Weight
from eagle_aot.targets.int4.formats import format_of
from eagle_aot.targets.int4.quantise import quantise
from eagle_aot.targets.int4.weight import random_int4

PIECE = 2**24
"""Elements."""

WEIGHT = ".weight"
CODES_PER_WORD = 8
"""INT4 codes in an int32, in every format of linears that are stored as several tensors."""

LM_HEAD = "lm_head.weight"
LAYERS = "layers."
"""How the names of decoder layers begin: only their linears are quantised on load."""

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

    A linear becomes an `Int4Linear` where the checkpoint holds INT4, or is to be quantised. Tensors
    whose names start with one of `unused` are known and not needed; any other tensor left over
    raises CheckpointError, as do a missing tensor and a wrong shape; UnsupportedError a
    quantisation that is not read. One dense weight at a time is in memory.
    """
    used = _fill_int4(model, checkpoint, prefix, dtype)
    for name, current in model.state_dict().items():
        if isinstance(model.get_submodule(name.rpartition(".")[0]), Int4Linear):
            continue
        stored = stored_name(name, prefix)
        used.add(stored)
        assign(model, name, checked(checkpoint, stored, current.shape, dtype))
    left = [n for n in checkpoint.names() if n not in used and not n.startswith(unused)]
    if left:
        raise CheckpointError(f"{checkpoint.directory}: unknown tensors {', '.join(left[:5])}")


def check_sizes(model: nn.Module, checkpoint: Checkpoint, prefix: str) -> None:
    """Raise CheckpointError unless the tensors have the sizes that `model`, on meta, is made of.

    Nothing is read and nothing allocated, so that sizes which a config.json makes up cost nothing:
    what no tensor has a size of, the caches, follows from what is checked here.
    """
    layout = format_of(checkpoint)
    for name, wanted in model.state_dict().items():
        stored = stored_name(name, prefix)
        if stored in checkpoint:
            check_shape(checkpoint, stored, checkpoint.shape(stored), wanted.shape)
        elif layout is not None and layout.holds(checkpoint, module := stored.removesuffix(WEIGHT)):
            words = checkpoint.shape(f"{module}.{layout.suffixes[0]}")
            if CODES_PER_WORD * words.numel() != wanted.numel():
                raise CheckpointError(
                    f"{checkpoint.directory}: {module} is stored as {list(words)} words, "
                    f"config.json says {list(wanted.shape)}"
                )
        else:
            raise CheckpointError(f"{checkpoint.directory}: tensor {stored!r} is missing")


def stored_again(checkpoint: Checkpoint, prefix: str) -> tuple[str, ...]:
    """Names that a checkpoint with tied tables holds and a decoder does not need.

    Quantised releases store the table a second time. Raises CheckpointError where it is another.
    """
    if LM_HEAD not in checkpoint:
        return ()
    table = checkpoint.tensor(f"{prefix}embed_tokens.weight")
    if not torch.equal(table, checkpoint.tensor(LM_HEAD)):
        raise CheckpointError(
            f"{checkpoint.directory}: config.json ties the embeddings, "
            "but lm_head.weight differs from embed_tokens.weight"
        )
    return (LM_HEAD,)


def fill_dummy(model: nn.Module, group_size: int, dtype: torch.dtype) -> None:
    """Give every layer's linears random INT4 weights and every table random rows.

    An output table is dense, as in released INT4 checkpoints. Under a fake-tensor mode nothing is
    materialised.
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.startswith(LAYERS):
            weight = random_int4(module.out_features, module.in_features, group_size, dtype)
            replace_linear(model, name, Int4Linear(weight, dtype))
        elif isinstance(module, nn.Linear | nn.Embedding):
            embeds = isinstance(module, nn.Embedding)
            scale = module.weight.shape[1] ** -0.5 * (DUMMY_EMBEDDING if embeds else 1)
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
    check_shape(checkpoint, name, tensor.shape, shape)
    if tensor.is_floating_point() != dtype.is_floating_point or tensor.dtype == torch.bool:
        raise CheckpointError(f"{checkpoint.directory}: {name} holds {tensor.dtype} values")
    if tensor.is_floating_point() and not _is_finite(tensor):
        raise CheckpointError(f"{checkpoint.directory}: {name} holds NaN or infinite values")
    return tensor.to(dtype)


def _is_finite(tensor: Tensor) -> bool:
    """By pieces: a check of all at once takes twice the tensor's own memory."""
    return all(torch.isfinite(piece).all() for piece in tensor.flatten().split(PIECE))


def check_shape(
    checkpoint: Checkpoint, name: str, stored: Sequence[int], wanted: Sequence[int]
) -> None:
    """Raise CheckpointError where a stored tensor's shape is not the one that is wanted."""
    if tuple(stored) != tuple(wanted):
        raise CheckpointError(
            f"{checkpoint.directory}: {name} is {list(stored)}, config.json says {list(wanted)}"
        )


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


def _fill_int4(
    model: nn.Module, checkpoint: Checkpoint, prefix: str, dtype: torch.dtype
) -> set[str]:
    """Make linears INT4 that are stored so, or are to be; the names of their tensors."""
    used: set[str] = set()
    layout = format_of(checkpoint)
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear):
            continue
        stored = stored_name(name, prefix)
        if layout is not None and layout.holds(checkpoint, stored):
            weight: Int4Weight | None = layout.read(checkpoint, stored)
            used |= {f"{stored}.{suffix}" for suffix in layout.suffixes}
        else:
            weight = checkpoint.int4(f"{stored}.weight")
            used.add(f"{stored}.weight")
        if weight is None and name.startswith(LAYERS):
            weight = _quantised(checkpoint, f"{stored}.weight", module, dtype)
        if weight is not None:
            check_shape(checkpoint, stored, weight.shape, (module.out_features, module.in_features))
            replace_linear(model, name, Int4Linear(weight, dtype))
    return used


def _quantised(
    checkpoint: Checkpoint, name: str, linear: nn.Linear, dtype: torch.dtype
) -> Int4Weight | None:
    """A dense weight of the checkpoint as INT4; None where that is not asked for."""
    if checkpoint.quantise is None:
        return None
    dense = checked(checkpoint, name, linear.weight.shape, torch.float32)
    return quantise(dense, checkpoint.quantise, dtype, name)
