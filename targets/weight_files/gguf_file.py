"""GGUF, through the `gguf` package: Q4_0, Q4_1 and Q4_K as INT4, all other types dequantised.

Shapes are stored in reverse. In the architecture `llama`, rows of q and k are stored in the order
of an interleaved rotary embedding; they are put back into the order of Hugging Face checkpoints.
Source: gguf 0.19, llama.cpp `convert_hf_to_gguf.py`.
"""

from collections.abc import Callable, Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct, calcsize, unpack_from
from struct import error as TooShort
from typing import Any

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import MAX_LAYERS
from eagle_aot.targets.int4.gguf_blocks import read_q4_0, read_q4_1, read_q4_k
from eagle_aot.targets.int4.weight import Int4Weight

try:
    import numpy as np
    from gguf import (
        GGUF_MAGIC,
        MODEL_ARCH,
        MODEL_ARCH_NAMES,
        GGUFReader,
        GGUFValueType,
        ReaderTensor,
        dequantize,
        get_tensor_name_map,
    )
    from gguf import GGMLQuantizationType as Type
    from gguf import (
        TokenType as TokenType,
    )
    from gguf.gguf_reader import READER_SUPPORTED_VERSIONS
except ImportError as error:
    raise UnsupportedError('GGUF needs its package: run pip install "eagle-aot[gguf]"') from error

from eagle_aot.targets.weight_files.gguf_delta_nets import MODULES, DeltaNetLayout, other_names
from eagle_aot.targets.weight_files.protocol import TensorStorage

LLAMA = "llama"
GEMMA4, QWEN3_5 = "gemma4", "qwen35"
ARCHITECTURES = (GEMMA4, LLAMA, "qwen2", "qwen3", QWEN3_5, "qwen3moe")
"""Architectures whose conversion is known; others also shift norms or reorder rows."""

TOP = ("model.embed_tokens", "model.norm", "lm_head")
PER_LAYER = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("self_attn.q_norm", "self_attn.k_norm"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.gate"),
    *("mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj"),
    *("input_layernorm", "post_attention_layernorm"),
    *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "layer_scalar",
)
OF_GEMMA4 = (
    *("router.proj", "experts.gate_up_proj", "experts.down_proj"),
    *("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1"),
    "post_feedforward_layernorm_2",
)
"""In addition, in layers of Gemma 4 with experts. They follow `PER_LAYER`, for some of whose names
llama.cpp has the same."""
OTHERS_OF_LAYERS = {GEMMA4: OF_GEMMA4, QWEN3_5: MODULES}
"""By architecture, in addition to `PER_LAYER`."""
MTP_LAYERS = "nextn_predict_layers"
SCALES_OF_GEMMA4 = {
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
}
"""Scales of a layer of Gemma 4: llama.cpp stores that of experts beside what it multiplies."""
GATE_UP = "gate_up_proj.weight"
WITHOUT_WEIGHT = ".layer_scalar"
"""Suffix of a name that has no `.weight` in Hugging Face checkpoints."""

INT4_READERS = {Type.Q4_0: read_q4_0, Type.Q4_1: read_q4_1, Type.Q4_K: read_q4_k}
GROUP_SIZE = 32
"""Columns that share a scale in each of them."""
MAX_KEYS, MAX_TENSORS, MAX_DIMENSIONS = 4096, 1 << 16, 4
MAX_ELEMENTS = 3 << 19
"""Of all arrays of a file. Gemma 4 has 1.3 million: tokens, their types and scores, and merges. The
`gguf` package takes 1.6 kB for each."""
MAX_TEXT = 1 << 20
"""Bytes of a text; the longest ones are chat templates and licences."""
STACKED = "_exps."
"""What names of tensors have that stack all experts of a layer."""
COMPUTED = "rope_freqs.weight"
"""A table that llama.cpp stores and that can be computed from the config."""
INTERLEAVED = {
    ".self_attn.q_proj": "attention.head_count",
    ".self_attn.k_proj": "attention.head_count_kv",
}
"""Name suffixes of linears with interleaved rows, and the keys of their numbers of heads."""


class GgufFile:
    """A text model in one GGUF file; tensors stay on disk until they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _open(path)
        self.architecture = str(self.field("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise UnsupportedError(
                f"{path}: architecture {self.architecture!r}: known are {', '.join(ARCHITECTURES)}"
            )
        names = hugging_face_names(self.architecture, self._layers, self._count("block_count"))
        self._delta_nets = self._delta_net_layout()
        self._tensors: dict[str, ReaderTensor] = {
            name: part
            for tensor in self._reader.tensors
            if tensor.name != COMPUTED
            for name, part in self._parts(names.get(tensor.name, tensor.name), tensor)
        }

    def _parts(self, name: str, tensor: ReaderTensor) -> Iterator[tuple[str, ReaderTensor]]:
        """Yield a tensor and its name; one that stacks experts [E, N, K] as those of each, and one
        with the rows of gates before those of up projections as both."""
        if STACKED not in tensor.name or len(tensor.shape) != 3:
            yield name, tensor
            return
        owner, _, leaf = name.partition(".experts.")
        leaves = ("gate_proj.weight", "up_proj.weight") if leaf == GATE_UP else (leaf,)
        columns, rows, experts = tensor.shape
        count = int(experts) * len(leaves)
        size = {"n_elements": tensor.n_elements // count, "n_bytes": tensor.n_bytes // count}
        shape = np.array([columns, rows // len(leaves)])
        for expert, data in enumerate(tensor.data):
            for part_of, part in zip(leaves, np.split(data, len(leaves)), strict=True):
                stored = tensor._replace(shape=shape, data=part, **size)
                yield f"{owner}.experts.{expert}.{part_of}", stored

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> torch.Size:
        shape = self._stored_shape(name)
        return shape if self._delta_nets is None else self._delta_nets.shape(name, shape)

    def _stored_shape(self, name: str) -> torch.Size:
        return torch.Size(reversed(self._tensors[name].shape.tolist()))

    def storage(self, name: str) -> TensorStorage:
        tensor = self._tensors[name]
        is_int4 = self._int4_reader(name) is not None
        return TensorStorage(tensor.tensor_type.name, int(tensor.n_bytes), is_int4)

    def _int4_reader(self, name: str) -> Callable[[Tensor], Int4Weight] | None:
        """Return what reads the tensor as INT4; None if it is read dense."""
        stored = self._tensors[name]
        nets, is_matrix = self._delta_nets, len(stored.shape) == 2
        is_whole = nets is None or nets.keeps_groups(name, GROUP_SIZE)
        return INT4_READERS.get(stored.tensor_type) if is_matrix and is_whole else None

    def tensor(self, name: str) -> Tensor:
        stored = self._tensors[name]
        if stored.tensor_type == Type.BF16:
            dense = _copy(stored).view(torch.bfloat16)
        elif stored.tensor_type in (Type.F16, Type.F32):
            dense = _copy(stored)
        else:
            dense = self._dequantised(stored)
        dense = dense.view(self._stored_shape(name))
        rows, columns = self._row_order(name), self._column_order(name, 1)
        dense = dense if rows is None else dense[rows]
        dense = dense if columns is None else dense[:, columns]
        return dense if self._delta_nets is None else self._delta_nets.values(name, dense)

    def int4(self, name: str) -> Int4Weight | None:
        read = self._int4_reader(name)
        if read is None:
            return None
        weight = read(_copy(self._tensors[name]))
        if not torch.isfinite(weight.scale).all() or not torch.isfinite(weight.zero_point).all():
            raise CheckpointError(f"{self.path}: {name} has NaN or infinite scales")
        rows, groups = self._row_order(name), self._column_order(name, GROUP_SIZE)
        weight = weight if rows is None else weight.with_rows(rows)
        return weight if groups is None else weight.with_groups(groups)

    def _dequantised(self, stored: ReaderTensor) -> Tensor:
        try:
            return torch.from_numpy(dequantize(stored.data, stored.tensor_type))
        except NotImplementedError as error:
            raise UnsupportedError(f"{self.path}: {stored.name}: {error}") from error
        except ValueError as error:
            raise CheckpointError(f"{self.path}: {stored.name}: damaged ({error})") from error

    def _row_order(self, name: str) -> Tensor | None:
        """Return the stored row of each Hugging Face row, int64 [N]; None if rows are in order."""
        if self._delta_nets is not None:
            order = self._delta_nets.row_order(name)
            return self._complete(order, name, self._stored_shape(name)[0], "rows")
        linear = name.rpartition(".")[0]
        suffix = next((end for end in INTERLEAVED if linear.endswith(end)), None)
        if self.architecture != LLAMA or suffix is None:
            return None
        rows, heads = self.shape(name)[0], self._count(INTERLEAVED[suffix])
        if rows % (2 * heads):
            raise CheckpointError(f"{self.path}: {name}: {rows} rows of {heads} heads")
        return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).flatten()

    def _column_order(self, name: str, size: int) -> Tensor | None:
        """Return the stored group of each `size` columns, int64 [K / size]; None if in order."""
        if self._delta_nets is None:
            return None
        order = self._delta_nets.column_order(name, size)
        return self._complete(order, name, self._stored_shape(name)[-1] // size, "groups")

    def _complete(self, order: Tensor | None, name: str, count: int, what: str) -> Tensor | None:
        """Return an order int64 [count]. Raises CheckpointError if it has another length, which
        follows from metadata."""
        if order is not None and len(order) != count:
            raise CheckpointError(
                f"{self.path}: {name}: {count} {what}, and {len(order)} by the metadata"
            )
        return order

    @property
    def _layers(self) -> int:
        """The number of decoder layers, which come before MTP layers."""
        has_mtp = self.field(f"{self.architecture}.{MTP_LAYERS}")
        return self._count("block_count") - (self._count(MTP_LAYERS) if has_mtp else 0)

    def _delta_net_layout(self) -> DeltaNetLayout | None:
        """Return how delta nets are stored; None for an architecture without them."""
        if self.architecture != QWEN3_5:
            return None
        heads, key_heads = self._count("ssm.time_step_rank"), self._count("ssm.group_count")
        if heads % key_heads:
            raise CheckpointError(f"{self.path}: {heads} value heads, {key_heads} key heads")
        return DeltaNetLayout(
            key_heads=key_heads,
            heads=heads,
            key_dim=self._count("ssm.state_size"),
            value_dim=self._count("ssm.inner_size", MAX_ELEMENTS) // heads,
        )

    def _count(self, key: str, most: int = MAX_LAYERS) -> int:
        name = f"{self.architecture}.{key}"
        value = self.field(name)
        if type(value) is not int or not 1 <= value <= most:
            raise CheckpointError(
                f"{self.path}: {name} is {value!r}, expected an integer of 1 to {most}"
            )
        return value

    def rope_factors(self) -> Tensor | None:
        """Return what the rotary frequencies are divided by, float32 [head_dim / 2], if stored.

        A config implies the table, so it is not one of the weights.
        """
        stored = next((t for t in self._reader.tensors if t.name == COMPUTED), None)
        return None if stored is None else _copy(stored).float()

    @property
    def factors_span(self) -> range | None:
        """Where the file has the table of `rope_factors`, in bytes; None if it has none."""
        stored = next((t for t in self._reader.tensors if t.name == COMPUTED), None)
        if stored is None:
            return None
        return range(int(stored.data_offset), int(stored.data_offset + stored.n_bytes))

    def metadata_keys(self) -> list[str]:
        return list(self._reader.fields)

    def field(self, name: str) -> Any:
        """Return the value of a metadata key; None if the file does not have it."""
        field = self._reader.get_field(name)
        try:
            return None if field is None else field.contents()
        except (ValueError, IndexError) as error:
            raise CheckpointError(f"{self.path}: {name} cannot be read ({error})") from error


def _open(path: Path) -> GGUFReader:
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            _Head(data).check()
        reader = GGUFReader(path)
    except Exception as error:  # the package raises another type for every kind of damage
        raise CheckpointError(
            f"{path}: cannot be read as GGUF, it may be damaged or cut short: {error}"
        ) from error
    split = reader.get_field("split.count")
    if split is not None and split.contents() > 1:
        raise UnsupportedError(f"{path}: one of several parts; join them: llama-gguf-split --merge")
    if empty := next((tensor for tensor in reader.tensors if not tensor.n_elements), None):
        raise CheckpointError(f"{path}: {empty.name} is empty: its shape is {empty.shape.tolist()}")
    return reader


def has_whole_head(data: bytes) -> bool:
    """Whether the beginning of a file has all of its metadata and its list of tensors. Raises
    ValueError for one of another format and for counts that no model has."""
    if data[:4] != GGUF_MAGIC.to_bytes(4, "little"):
        raise ValueError("it does not begin as GGUF files do")
    try:
        _Head(data).check()
    except TooShort:
        return False
    return True


class _Head:
    """The metadata and the list of tensors of a file, walked without making an object of each
    element, which the `gguf` package does; `check` raises for what would take it minutes."""

    def __init__(self, data: mmap | bytes) -> None:
        self._data, self._position = data, 0
        self._elements = 0  # of all arrays

    def check(self) -> None:
        """Raise ValueError for counts and lengths that no model has, and struct.error for a file
        that is shorter than they say."""
        _, version = self._numbers("<4sI")
        if version not in READER_SUPPORTED_VERSIONS:
            return  # the package says so
        tensors, keys = self._numbers("<QQ")
        self._bound("tensors", tensors, MAX_TENSORS)
        self._bound("keys", keys, MAX_KEYS)
        for _ in range(keys):
            self._texts(1)
            self._value(*self._numbers("<I"))
        for _ in range(tensors):
            self._texts(1)
            (dimensions,) = self._numbers("<I")
            self._bound("dimensions", dimensions, MAX_DIMENSIONS)
            self._numbers(f"<{dimensions}QIQ")

    def _value(self, kind: int) -> None:
        count = 1
        if kind == GGUFValueType.ARRAY:
            kind, count = self._numbers("<IQ")
            self._elements += count
            self._bound("elements of arrays", self._elements, MAX_ELEMENTS)
        if kind == GGUFValueType.STRING:
            self._texts(count)
        else:
            scalar = GGUFReader.gguf_scalar_to_np.get(GGUFValueType(kind))
            if scalar is None:
                raise ValueError("an array of arrays")
            self._position += count * scalar().itemsize

    def _texts(self, count: int) -> None:
        position, length_at = self._position, Struct("<Q").unpack_from
        for _ in range(count):
            (length,) = length_at(self._data, position)
            if length > MAX_TEXT:
                self._bound("bytes of a text", length, MAX_TEXT)
            position += 8 + length
        self._position = position

    def _numbers(self, form: str) -> tuple[Any, ...]:
        values = unpack_from(form, self._data, self._position)
        self._position += calcsize(form)
        return values

    def _bound(self, name: str, count: int, most: int) -> None:
        if count > most:
            raise ValueError(f"{count} {name}, expected at most {most}")


def _copy(stored: ReaderTensor) -> Tensor:
    """Copy a stored tensor [...], whose mapped memory is read-only."""
    return torch.from_numpy(np.array(stored.data))


def hugging_face_names(architecture: str, layers: int, blocks: int) -> dict[str, str]:
    """Map GGUF's tensor names to those of Hugging Face, for one of `ARCHITECTURES`. Of all `blocks`
    those after the `layers` are MTP layers."""
    names = get_tensor_name_map(_arch(architecture), blocks)
    of_layers = (*PER_LAYER, *OTHERS_OF_LAYERS.get(architecture, ()))
    modules = dict(zip(TOP, TOP, strict=True))
    for block in range(blocks):
        name = f"model.layers.{block}" if block < layers else f"mtp.layers.{block - layers}"
        modules |= {f"model.layers.{block}.{module}": f"{name}.{module}" for module in of_layers}
    gguf_names = {name: names.get_name(module) for module, name in modules.items()}
    others = {
        f"blk.{i}.{stored}": f"model.layers.{i}.{scale}"
        for i in range(layers if architecture == GEMMA4 else 0)
        for stored, scale in SCALES_OF_GEMMA4.items()
    }
    others |= dict(other_names(layers)) if architecture == QWEN3_5 else {}
    return others | {
        f"{gguf_name}{suffix}": name if name.endswith(WITHOUT_WEIGHT) else f"{name}{suffix}"
        for name, gguf_name in gguf_names.items()
        for suffix in (".weight", ".bias")
        if gguf_name is not None
    }


def _arch(name: str) -> MODEL_ARCH:
    return next(arch for arch, arch_name in MODEL_ARCH_NAMES.items() if arch_name == name)
