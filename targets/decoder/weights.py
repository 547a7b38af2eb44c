"""Fill a decoder from a checkpoint, strictly: no tensor stays unread and no parameter unfilled.

Modules have the names that checkpoints give them, so a `prefix` is the whole mapping.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import median

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.experts import (
    ExpertLinears,
    Int4ExpertLinears,
    RouterLinear,
    random_experts,
    stack_experts,
)
from eagle_aot.targets.decoder.layer import fold_column_orders
from eagle_aot.targets.int4 import Biased, Int4Linear, Int4Weight
from eagle_aot.targets.int4.formats import format_of
from eagle_aot.targets.int4.quantise import quantise as quantise_int4
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
EXPERT_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""The linears of each expert whose rows follow one another in a stack."""
READ_BEFORE = (Int4Linear, ExpertLinears, Int4ExpertLinears)
"""Modules that have their tensors before those of others are read."""

LinearFormats = Callable[[str], Int4Format | None]
"""Returns the format of the linear that a decoder calls by this name; None if it is dense."""
GROUP_SIZE = 32
"""Columns that share a scale in released INT4 checkpoints, and in GGUF's blocks."""

DUMMY_EMBEDDING = 1 / 16
"""Scale of dummy embeddings. It is small so that the layers decide the next token: if the output
table is the embedding, a stream that is mostly its own token would repeat that token forever."""
ROUTER_SPREAD = 0.5
"""Standard deviation of the logarithms of the lengths of a dummy router's rows. The experts with
long ones are taken more often: of 128, if a row takes 8, the busiest has 4.6 times the mean load
and a quarter next to none; 2, 5 and 9 rows take 1.85, 3.8 and 5.6 times the experts of one.
Real texts: 1.74 times for 2 rows (GLM-4.7-Flash, ml-explore/mlx-lm#1485), 3.2 and 6.1 times for
about 5 and 9 (vLLM's RFC #46295)."""
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
    reader = _Int4Reader(checkpoint, dtype)
    _fill_int4(model, reader, prefix)
    _fill_experts(model, reader, prefix)
    _check_mean(checkpoint, reader.steps)
    used = reader.used
    for name, current in model.state_dict().items():
        if isinstance(model.get_submodule(name.rpartition(".")[0]), READ_BEFORE):
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
    for tensor_name, expected in _stored_shapes(model, prefix):
        module = tensor_name.removesuffix(WEIGHT)
        if tensor_name in checkpoint:
            check_shape(checkpoint, tensor_name, checkpoint.shape(tensor_name), expected)
        elif layout is not None and layout.holds(checkpoint, module):
            if layout.elements(checkpoint, module) != expected.numel():
                words = checkpoint.shape(f"{module}.{layout.suffixes[0]}")
                raise CheckpointError(
                    f"{checkpoint.directory}: {module} is stored as {list(words)} words, "
                    f"config.json says {list(expected)}"
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
        if isinstance(module, ExpertLinears):
            first = next(_names_of_experts(name, module, ""))[0]
            replace_linear(model, name, random_experts(module.sizes, formats(first), dtype))
        if not isinstance(module, nn.Linear | nn.Embedding):
            continue
        linear = module if isinstance(module, nn.Linear) else None
        int4 = formats(name) if linear is not None and _is_quantisable(linear) else None
        if linear is not None and int4 is not None:
            shape = linear.out_features, linear.in_features
            weight = random_int4(*shape, int4.group_size, dtype, int4.digits)
            replace_linear(model, name, _int4_linear(weight, linear, dtype))
        else:
            scale = module.weight.shape[1] ** -0.5 * (DUMMY_EMBEDDING if linear is None else 1)
            weight = torch.randn(module.weight.shape, dtype=dtype) * scale
            if isinstance(module, RouterLinear):
                lengths = (ROUTER_SPREAD * torch.randn(len(weight), 1, dtype=dtype)).exp()
                weight = weight / weight.norm(dim=1, keepdim=True) * lengths
            assign(model, f"{name}.weight", weight)
        if linear is not None and linear.bias is not None:
            bias = DUMMY_BIAS * torch.randn(linear.out_features, dtype=dtype)
            assign(model, f"{name}.bias", bias)


def int4_layers(name: str) -> Int4Format | None:
    """Return INT4 for the linears of all layers; output tables are dense, as in released INT4
    checkpoints."""
    return Int4Format(GROUP_SIZE) if name.startswith(LAYERS) else None


def _is_quantisable(linear: nn.Linear) -> bool:
    """Whether a linear may be quantised: a router may not."""
    return not isinstance(linear, RouterLinear)


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


def _stored_shapes(model: nn.Module, prefix: str) -> Iterator[tuple[str, torch.Size]]:
    """Yield name and shape of each tensor that a dense checkpoint stores, those of experts one by
    one."""
    for name, tensor in model.state_dict().items():
        owner = name.rpartition(".")[0]
        module = model.get_submodule(owner)
        if not isinstance(module, ExpertLinears):
            yield checkpoint_name(name, prefix), tensor.shape
            continue
        for linears in _names_of_experts(owner, module, prefix):
            shape = torch.Size((tensor.shape[1] // len(linears), tensor.shape[2]))
            yield from ((f"{linear}{WEIGHT}", shape) for linear in linears)


def _names_of_experts(name: str, stack: ExpertLinears, prefix: str) -> Iterator[list[str]]:
    """Yield the linears in a checkpoint that each expert of the stack called `name` has."""
    owner, _, leaf = name.rpartition(".")
    for expert in range(stack.sizes[0]):
        yield [checkpoint_name(f"{owner}.{expert}.{part}", prefix) for part in EXPERT_PARTS[leaf]]


class _Int4Reader:
    """Reads linears that are stored as INT4 or to be quantised, and notes their tensors' names."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        self.checkpoint, self.dtype = checkpoint, dtype
        self.used: set[str] = set()
        self.steps: list[float] = []
        """What `_check_mean` takes."""
        self._layout = format_of(checkpoint)

    def read(self, linear: str, shape: torch.Size, *, quantise: bool) -> Int4Weight | None:
        """Return the weight of the linear called `linear`, whose shape must be [N, K].

        None if it is stored dense, unless all dense ones are to be quantised and this one, too.
        """
        name = f"{linear}{WEIGHT}"
        if self._layout is not None and self._layout.holds(self.checkpoint, linear):
            weight: Int4Weight | None = (packed := self._layout.read(self.checkpoint, linear))
            self.used |= {f"{linear}.{suffix}" for suffix in self._layout.suffixes}
            self.steps += [packed.mean_steps()] if packed.digits == 1 else []
        else:
            weight = self.checkpoint.int4(name)
            self.used.add(name)
        if weight is None and quantise and self.checkpoint.quantise is not None:
            dense = read_tensor(self.checkpoint, name, shape, torch.float32)
            weight = quantise_int4(dense, self.checkpoint.quantise, self.dtype, name)
        if weight is not None:
            columns = weight.shape[1] // weight.digits
            check_shape(self.checkpoint, linear, (weight.shape[0], columns), shape)
        return weight

    def weight(self, linear: str, shape: torch.Size) -> Int4Weight | Tensor:
        """Return the weight of an expert's linear: INT4, or dense [N, K]."""
        weight = self.read(linear, shape, quantise=True)
        if weight is not None:
            return weight
        return read_tensor(self.checkpoint, f"{linear}{WEIGHT}", shape, self.dtype)


def _fill_int4(model: nn.Module, reader: _Int4Reader, prefix: str) -> None:
    """Make linears INT4 that are stored so or to be quantised; those of routers are dense."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear):
            continue
        linear = checkpoint_name(name, prefix)
        quantise = name.startswith(LAYERS) and _is_quantisable(module)
        weight = reader.read(linear, module.weight.shape, quantise=quantise)
        if weight is not None and isinstance(module, RouterLinear):
            raise UnsupportedError(
                f"{reader.checkpoint.directory}: {linear} is quantized: routers are read dense"
            )
        if weight is not None:
            replace_linear(model, name, _int4_linear(weight, module, reader.dtype))


def _fill_experts(model: nn.Module, reader: _Int4Reader, prefix: str) -> None:
    """Fill the stacks of experts, one after another."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, ExpertLinears):
            continue
        _, rows, columns = module.sizes
        weights = []
        for linears in _names_of_experts(name, module, prefix):
            shape = torch.Size((rows // len(linears), columns))
            weights.append([reader.weight(linear, shape) for linear in linears])
        replace_linear(model, name, stack_experts(weights, reader.dtype))


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
