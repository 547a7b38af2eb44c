"""Fill a decoder from a checkpoint, strictly: no tensor stays unread and no parameter unfilled.

Modules have the names that checkpoints give them, so a `prefix` is the whole mapping.
"""

from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.layer import fold_column_orders
from eagle_aot.targets.int4 import Biased, Int4Linear, Int4Weight
from eagle_aot.targets.int4.formats import format_of
from eagle_aot.targets.int4.quantise import quantise
from eagle_aot.targets.int4.weight import Int4Format, random_int4

CHECKED_ELEMENTS = 2**24
"""How many elements are checked for NaN at a time."""

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""Dtypes whose values are read as they are."""

WEIGHT, BIAS = ".weight", ".bias"
KV_SCALES = tuple(
    f".{name}"
    for name in (
        *("k_scale", "v_scale", "kv_scale", "q_scale", "prob_scale"),
        *("k_zero_point", "v_zero_point", "k_proj.output_scale", "v_proj.output_scale"),
        *("k_proj.output_zero_point", "v_proj.output_zero_point"),
    )
)
"""Suffixes of the scales of a quantised KV cache; caches here are not quantised."""

MEAN_STEPS = 0.5
HALF_BYTES = 2
"""An element in fewer bytes is quantised."""

LM_HEAD, TABLE = "lm_head.weight", "embed_tokens.weight"
LAYERS = "layers."
"""Prefix of the names of decoder layers; only their linears are quantised on load."""

LinearFormats = Callable[[str], Int4Format | None]
"""Returns the format of the linear that a decoder calls by this name; None if it is dense."""
GROUP_SIZE = 32
"""Columns that share a scale in released INT4 checkpoints, and in GGUF's blocks."""

DUMMY_EMBEDDING = 1 / 16
"""Scale of dummy embeddings. It is small so that the layers decide the next token: if the output
table is the embedding, a stream that is mostly its own token would repeat that token forever."""
DUMMY_BIAS = 1 / 16
"""Scale of dummy biases, small because every token has the same."""


def load_weights(
    model: nn.Module,
    checkpoint: Checkpoint,
    prefix: str,
    unused: tuple[str, ...],
    dtype: torch.dtype,
) -> None:
    """Fill every linear, parameter and persistent buffer of `model` from the checkpoint.

    A linear becomes an `Int4Linear` if the checkpoint holds it as INT4 or is to be quantised.
    Tensors whose names start with one of `unused` are skipped, and so are zeros that AutoGPTQ
    stores as the bias of a linear without one. One dense weight at a time is in memory. Raises
    CheckpointError for any other tensor that is left over, for a missing tensor and for a wrong
    shape; UnsupportedError for a quantisation that is not read.
    """
    used = _fill_int4(model, checkpoint, prefix, dtype)
    for name, current in model.state_dict().items():
        if isinstance(model.get_submodule(name.rpartition(".")[0]), Int4Linear):
            continue
        tensor_name = checkpoint_name(name, prefix)
        used.add(tensor_name)
        assign(model, name, read_tensor(checkpoint, tensor_name, current.shape, dtype))
    fold_column_orders(model)
    unknown = [n for n in checkpoint.names() if n not in used and not n.startswith(unused)]
    unknown = [n for n in unknown if not n.endswith(BIAS) or checkpoint.tensor(n).any()]
    unknown = [n for n in unknown if not n.endswith(KV_SCALES)]
    if unknown:
        raise CheckpointError(f"{checkpoint.directory}: unknown tensors {', '.join(unknown[:5])}")


def name_prefix(checkpoint: Checkpoint, prefixes: Sequence[str]) -> str:
    """Return which of `prefixes` the names of a checkpoint have. Raises CheckpointError."""
    for prefix in prefixes:
        if f"{prefix}{TABLE}" in checkpoint:
            return prefix
    raise CheckpointError(f"{checkpoint.directory}: no {prefixes[0]}{TABLE}")


def check_sizes(model: nn.Module, checkpoint: Checkpoint, prefix: str) -> None:
    """Raise CheckpointError unless the stored tensors have the shapes of `model`, which is on meta.

    Nothing is read or allocated, so wrong sizes in a config.json are refused before they cost
    memory. The sizes of caches follow from those that are checked here.
    """
    layout = format_of(checkpoint)
    for name, expected in model.state_dict().items():
        tensor_name = checkpoint_name(name, prefix)
        module = tensor_name.removesuffix(WEIGHT)
        if tensor_name in checkpoint:
            check_shape(checkpoint, tensor_name, checkpoint.shape(tensor_name), expected.shape)
        elif layout is not None and layout.holds(checkpoint, module):
            if layout.elements(checkpoint, module) != expected.numel():
                words = checkpoint.shape(f"{module}.{layout.suffixes[0]}")
                raise CheckpointError(
                    f"{checkpoint.directory}: {module} is stored as {list(words)} words, "
                    f"config.json says {list(expected.shape)}"
                )
        else:
            why = ": a base model saved without its head" if tensor_name == LM_HEAD else ""
            raise CheckpointError(f"{checkpoint.directory}: tensor {tensor_name!r} is missing{why}")


def has_own_table(checkpoint: Checkpoint) -> bool:
    """Whether a quantised output table is stored, which logits use even if the config ties it."""
    layout = format_of(checkpoint)
    if LM_HEAD not in checkpoint:
        return layout is not None and layout.holds(checkpoint, LM_HEAD.removesuffix(WEIGHT))
    stored = checkpoint.storage(LM_HEAD)
    return stored.bytes < HALF_BYTES * checkpoint.shape(LM_HEAD).numel()


def duplicate_tables(checkpoint: Checkpoint, prefix: str) -> tuple[str, ...]:
    """Return the tensor names that a checkpoint with tied tables need not have.

    Quantised releases store the tied table a second time. Raises CheckpointError if it differs.
    """
    if LM_HEAD not in checkpoint:
        return ()
    table = checkpoint.tensor(f"{prefix}{TABLE}")
    if not torch.equal(table, checkpoint.tensor(LM_HEAD)):
        raise CheckpointError(
            f"{checkpoint.directory}: config.json ties the embeddings, "
            "but lm_head.weight differs from embed_tokens.weight"
        )
    return (LM_HEAD,)


def fill_dummy(model: nn.Module, formats: LinearFormats, dtype: torch.dtype) -> None:
    """Give all linears random weights in their `formats`, and biases, and all tables random rows.

    Under a fake-tensor mode nothing is allocated.
    """
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear | nn.Embedding):
            continue
        linear = module if isinstance(module, nn.Linear) else None
        int4 = None if linear is None else formats(name)
        if linear is not None and int4 is not None:
            shape = linear.out_features, linear.in_features
            weight = random_int4(*shape, int4.group_size, dtype, int4.digits)
            replace_linear(model, name, _int4_linear(weight, linear, dtype))
        else:
            scale = module.weight.shape[1] ** -0.5 * (DUMMY_EMBEDDING if linear is None else 1)
            assign(model, f"{name}.weight", torch.randn(module.weight.shape, dtype=dtype) * scale)
        if linear is not None and linear.bias is not None:
            bias = DUMMY_BIAS * torch.randn(linear.out_features, dtype=dtype)
            assign(model, f"{name}.bias", bias)


def int4_layers(name: str) -> Int4Format | None:
    """Return INT4 for the linears of all layers; output tables are dense, as in released INT4
    checkpoints."""
    return Int4Format(GROUP_SIZE) if name.startswith(LAYERS) else None


def checkpoint_name(name: str, prefix: str) -> str:
    """Return the checkpoint's name of a tensor or module; the output table has no prefix."""
    return name if name.startswith("lm_head") else prefix + name


def read_tensor(checkpoint: Checkpoint, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Read a tensor of `shape` from the checkpoint and convert it to `dtype`.

    Raises CheckpointError for another shape, for integers instead of floats or the other way
    round, for a dtype that needs a scale, such as float8, and for NaN or infinite values.
    """
    tensor = checkpoint.tensor(name)
    check_shape(checkpoint, name, tensor.shape, shape)
    if tensor.dtype not in (FLOATS if dtype.is_floating_point else INTEGERS):
        raise CheckpointError(f"{checkpoint.directory}: {name} holds {tensor.dtype} values")
    if tensor.is_floating_point() and not _is_finite(tensor):
        raise CheckpointError(f"{checkpoint.directory}: {name} holds NaN or infinite values")
    return tensor.to(dtype)


def _is_finite(tensor: Tensor) -> bool:
    """Whether `tensor` [...] is finite, in pieces: one check would take twice its memory."""
    pieces = tensor.flatten().split(CHECKED_ELEMENTS)
    return all(torch.isfinite(piece).all() for piece in pieces)


def check_shape(
    checkpoint: Checkpoint, name: str, stored: Sequence[int], expected: Sequence[int]
) -> None:
    """Raise CheckpointError if the stored tensor's shape is not the expected one."""
    if tuple(stored) != tuple(expected):
        raise CheckpointError(
            f"{checkpoint.directory}: {name} is {list(stored)}, config.json says {list(expected)}"
        )


def assign(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace the parameter or buffer called `name` by `tensor` [...], whatever its storage was."""
    owner_name, _, leaf = name.rpartition(".")
    owner = model.get_submodule(owner_name)
    if leaf in owner._parameters:
        setattr(owner, leaf, nn.Parameter(tensor, requires_grad=False))
    else:
        setattr(owner, leaf, tensor)


def replace_linear(model: nn.Module, name: str, linear: nn.Module) -> None:
    """Replace the submodule called `name`."""
    owner_name, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner_name), leaf, linear)


def _fill_int4(
    model: nn.Module, checkpoint: Checkpoint, prefix: str, dtype: torch.dtype
) -> set[str]:
    """Make linears INT4 that are stored so or to be quantised; return their tensors' names."""
    used: set[str] = set()
    layout, steps = format_of(checkpoint), []
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear):
            continue
        linear = checkpoint_name(name, prefix)
        if layout is not None and layout.holds(checkpoint, linear):
            packed = layout.read(checkpoint, linear)
            used |= {f"{linear}.{suffix}" for suffix in layout.suffixes}
            steps += [packed.mean_steps()] if packed.digits == 1 else []
            weight: Int4Weight | None = packed
        else:
            weight = checkpoint.int4(f"{linear}.weight")
            used.add(f"{linear}.weight")
        if weight is None and name.startswith(LAYERS):
            weight = _quantise_on_load(checkpoint, f"{linear}.weight", module, dtype)
        if weight is not None:
            columns = weight.shape[1] // weight.digits
            expected = module.out_features, module.in_features
            check_shape(checkpoint, linear, (weight.shape[0], columns), expected)
            replace_linear(model, name, _int4_linear(weight, module, dtype))
    _check_mean(checkpoint, steps)
    return used


def _check_mean(checkpoint: Checkpoint, steps: list[float]) -> None:
    """Raise CheckpointError if half of the INT4 linears have mean weights far from zero.

    A zero point of another version of a format moves all of them by a step. Those of trained models
    have means of less than a tenth of a step.
    """
    middle = median(steps) if steps else 0
    if abs(middle) > MEAN_STEPS:
        raise CheckpointError(
            f"{checkpoint.directory}: INT4 weights are {middle:+.1f} steps off zero on average: "
            "their zero points are not of the format that config.json names "
            "(GPTQ: try the other checkpoint_format, gptq or gptq_v2)"
        )


def _int4_linear(weight: Int4Weight, linear: nn.Linear, dtype: torch.dtype) -> nn.Module:
    """Return what replaces `linear`, whose bias, if it has one, is still to be filled."""
    product = Int4Linear(weight, dtype)
    return product if linear.bias is None else Biased(product, linear.bias.detach())


def _quantise_on_load(
    checkpoint: Checkpoint, name: str, linear: nn.Linear, dtype: torch.dtype
) -> Int4Weight | None:
    """Quantise a dense weight of the checkpoint to INT4; None if that is not requested."""
    if checkpoint.quantise is None:
        return None
    dense = read_tensor(checkpoint, name, linear.weight.shape, torch.float32)
    return quantise(dense, checkpoint.quantise, dtype, name)
