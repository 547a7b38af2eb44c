"""`model.pte` and `model.ptd` of CUDA methods, whole and damaged.

ExecuTorch's serialisers write them, independently of the readers under test. No GPU is needed: any
bytes are a library.
"""

import gc
import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from executorch.backends.cuda.cuda_weight_collector import (
    CudaWeightEntry,
    encode_cuda_weight_metadata,
)
from executorch.exir import schema
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir._serialize.data_serializer import DataPayload
from executorch.exir.scalar_type import ScalarType
from executorch.exir.tensor import scalar_type_enum
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.artifact import PROGRAM, WEIGHTS
from eagle_aot.common.errors import ArtifactError

CPU, CUDA = 0, 1
CUDA_BACKEND = "CudaBackend"
TAG = "aoti_cuda_blob"
MAX_SECONDS = 5.0
"""CPU time that an endless loop exceeds on any machine."""

EXTREMES = tuple(
    (value % 2 ** (8 * width)).to_bytes(width, "little")
    for width in (1, 2, 4, 8)
    for value in (0, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1), -1)
)


def entry(fqn: str, tensor: Tensor, device: int = CUDA, /, **changes: Any) -> CudaWeightEntry:
    """Return an entry of a weight table; `changes` replace fields that the tensor gives."""
    fields = {
        "fqn": fqn,
        "storage_key": f"cuda_fqn_weight:{('cpu', 'cuda')[device]}:{fqn}",
        "storage_nbytes": tensor.untyped_storage().nbytes(),
        "dtype": int(scalar_type_enum(tensor.dtype)),
        "device_type": device,
        "storage_offset": tensor.storage_offset(),
        "sizes": tuple(tensor.shape),
        "strides": tensor.stride(),
    }
    return CudaWeightEntry(**{**fields, **changes})


@dataclass
class Method:
    """A method that is one delegate call. The orders are those of `plan.CudaMethod`."""

    name: str = "forward"
    entries: Sequence[CudaWeightEntry] = ()
    input_order: Sequence[int] = (0, 1, 2)
    output_order: Sequence[int] = (0, 1)
    library: bytes = b"\x7fELF, nearly"
    num_inputs: int = 3

    @property
    def library_key(self) -> str:
        return f"{hashlib.sha256(self.library).hexdigest()}_so_blob"

    @property
    def payload(self) -> bytes:
        return encode_cuda_weight_metadata(self.library_key, list(self.entries))


@dataclass
class Files:
    """The contents of the two files. `edit` may damage the program before it is written."""

    methods: Sequence[Method] = ()
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # by storage key
    constants: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    inline: bool = False
    edit: Callable[[schema.Program], None] = lambda program: None

    def write(self, directory: Path) -> Path:
        """Write both files and return the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / PROGRAM).write_bytes(self.program())
        (directory / WEIGHTS).write_bytes(self.tensor_data())
        return directory

    def program(self) -> bytes:
        plans = [cuda_plan(m, index) for index, m in enumerate(self.methods)]
        plans += [constant_plan(name, values) for name, values in self.constants.items()]
        program = schema.Program(
            version=0,
            execution_plan=plans,
            constant_buffer=[],
            backend_delegate_data=[
                schema.BackendDelegateInlineData(data=m.payload) for m in self.methods
            ],
            segments=[],
            constant_segment=schema.SubsegmentOffsets(segment_index=0, offsets=[]),
        )
        self.edit(program)
        store = NamedDataStore()
        for method in self.methods:
            store.add_named_data(method.library_key, method.library)
        named = store.get_named_data_store_output() if self.methods else None
        file = PTEFile(program=program, named_data=named)
        return bytes(serialize_pte_binary(file, extract_delegate_segments=not self.inline))

    def tensor_data(self) -> bytes:
        return tensor_data({key: storage_bytes(tensor) for key, tensor in self.weights.items()})


def storage_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of the storage of a tensor of any shape."""
    return bytes(tensor.untyped_storage().tolist())


def tensor_data(storages: Mapping[str, bytes]) -> bytes:
    """Return a `.ptd` file of these blobs; equal ones are stored once."""
    store = NamedDataStore()
    for key, data in storages.items():
        store.add_named_data(key, data, external_tag=TAG)
    output = store.get_named_data_store_output()
    payload = DataPayload(output.buffers, output.external_data.get(TAG, {}))
    return bytes(FlatTensorSerializer().serialize(payload))


def cuda_plan(method: Method, payload: int) -> schema.ExecutionPlan:
    """Return a method's plan; values are numbered unlike its inputs and outputs."""
    outputs = list(range(1, 1 + len(method.output_order)))
    inputs = [1 + len(outputs) + i for i in range(method.num_inputs)][::-1]
    arguments = [inputs[i] for i in method.input_order] + outputs
    call = schema.DelegateCall(delegate_index=0, args=arguments)
    return schema.ExecutionPlan(
        name=method.name,
        container_meta_type=schema.ContainerMetadata("", ""),
        values=[schema.EValue(schema.Int(7)), *(tensor_value() for _ in outputs + inputs)],
        inputs=inputs,
        outputs=[outputs[j] for j in method.output_order],
        chains=[schema.Chain([], [], [schema.Instruction(call)], None)],
        operators=[],
        delegates=[delegate(CUDA_BACKEND, payload)],
        non_const_buffer_sizes=[0],
    )


def constant_plan(name: str, values: Sequence[Any]) -> schema.ExecutionPlan:
    """Return a method that returns constants; a list holds indices of values."""
    kinds = {int: schema.Int, bool: schema.Bool, float: schema.Double, str: schema.String}
    typed = [v if type(v) not in kinds else kinds[type(v)](v) for v in values]
    return schema.ExecutionPlan(
        name=name,
        container_meta_type=schema.ContainerMetadata("", ""),
        values=[schema.EValue(value) for value in typed],
        inputs=[],
        outputs=list(range(len(typed))),
        chains=[],
        operators=[],
        delegates=[],
        non_const_buffer_sizes=[0],
    )


def delegate(backend: str, payload: int) -> schema.BackendDelegate:
    data = schema.BackendDelegateDataReference(schema.DataLocation.INLINE, payload)
    return schema.BackendDelegate(id=backend, processed=data, compile_specs=[])


def tensor_value() -> schema.EValue:
    return schema.EValue(
        schema.Tensor(
            scalar_type=ScalarType.FLOAT,
            storage_offset=0,
            sizes=[1],
            dim_order=[0],
            requires_grad=False,
            layout=0,
            data_buffer_idx=0,
            allocation_info=None,
            shape_dynamism=schema.TensorShapeDynamism.STATIC,
        )
    )


def replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    """Return `data` with its only `old` replaced."""
    assert data.count(old) == 1 and old != new, (data.count(old), old)
    return data.replace(old, new)


def refusal(read: Callable[[], object], *paths: Path) -> str | None:
    """Return the message of the ArtifactError that `read` raises, None if it succeeds.

    It may raise no other error, and the message is one line that begins with one of the paths.
    """
    line = None
    with time_limit():
        try:
            read()
        except ArtifactError as error:
            line = str(error)
    if line is not None:
        assert line.startswith(tuple(f"{path}: " for path in paths)), line
        assert line.isprintable(), line
    return line


def refusal_of_bytes(refused: Callable[[Path], str | None], path: Path, data: bytes) -> str:
    """Return the refusal of a file with these bytes, without its path."""
    path.write_bytes(data)
    line = refused(path)
    assert line is not None, "it was accepted"
    return line.removeprefix(f"{path}: ")


@contextmanager
def time_limit() -> Iterator[None]:
    """Fail when the block takes long; garbage collection would depend on earlier tests."""
    gc.disable()
    start = time.thread_time()
    try:
        yield
    finally:
        seconds = time.thread_time() - start
        gc.enable()
    assert seconds < MAX_SECONDS


def sampled_lengths(whole: int) -> list[int]:
    """Return lengths to cut a file to: all at its beginning, then some."""
    dense = min(512, whole)
    return sorted({*range(dense), *range(dense, whole, max(1, (whole - dense) // 200)), whole - 1})


Edit = tuple[str, int, bytes, int]


def edits() -> st.SearchStrategy[list[Edit]]:
    """Draw edits that damage a file of any length."""
    offset = st.integers(0, 2**16)
    content = st.sampled_from(EXTREMES) | st.binary(min_size=1, max_size=12)
    kind = st.sampled_from(("overwrite", "insert", "delete", "flip", "splice"))
    return st.lists(st.tuples(kind, offset, content, offset), min_size=1, max_size=4)


def damaged(data: bytes, other: bytes, damage: Iterable[Edit]) -> bytes:
    """Return `data` with bytes changed, inserted, deleted or replaced by some of `other`."""
    for kind, offset, content, second in damage:
        cut = offset % (len(data) + 1)
        head, tail = data[:cut], data[cut:]
        if kind == "overwrite":
            data = head + content + tail[len(content) :]
        elif kind == "insert":
            data = head + content + tail
        elif kind == "delete":
            data = head + tail[len(content) :]
        elif kind == "flip" and tail:
            data = head + bytes([tail[0] ^ (1 << second % 8)]) + tail[1:]
        elif kind == "splice":
            data = head + other[second % (len(other) + 1) :]
    return data


def orders(count: int) -> list[tuple[int, ...]]:
    """Return all orders of `count` items."""
    return list(itertools.permutations(range(count)))


def sample_files(inline: bool = False) -> Files:
    """Return two methods with shared weights, equal weights, equal caches and strided views."""
    base = torch.arange(24, dtype=torch.float32)
    tensors = {
        "target.w": base.view(4, 6),
        "target.column": base.clone().view(4, 6)[1:, 2],
        "target.packed": torch.arange(16, dtype=torch.uint8).view(4, 4),
        "target.kv_cache.k": torch.zeros(2, 4, dtype=torch.bfloat16),
        "target.kv_cache.v": torch.zeros(2, 4, dtype=torch.bfloat16),
        "draft.kv_cache.k": torch.zeros(2, 4, dtype=torch.bfloat16),
    }
    entries = {fqn: entry(fqn, tensor) for fqn, tensor in tensors.items()}
    on_cpu = entry("draft.scalar", torch.tensor(3), CPU)
    verify = Method(
        "target_verify", [entries[f] for f in entries if f.startswith("target.")], (2, 0, 1), (1, 0)
    )
    draft_names = ("draft.kv_cache.k", "target.w", "target.kv_cache.k")
    draft = Method(
        "draft_decode",
        [*(entries[f] for f in draft_names), on_cpu],
        library=b"\x7fELF of the draft",
    )
    weights = {entries[fqn].storage_key: tensor for fqn, tensor in tensors.items()}
    weights[on_cpu.storage_key] = torch.tensor(3)
    constants: dict[str, Sequence[Any]] = {"get_window": [8], "get_flags": [True, False]}
    return Files([verify, draft], weights, constants, inline)
