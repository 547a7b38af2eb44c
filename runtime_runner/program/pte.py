"""Reads a `.pte` file whose methods are lowered through ExecuTorch's CUDA backend, and its `.ptd`.

Layout of a `.pte` (exir/_serialize/_program.py): a flatbuffer of schema/program.fbs. When blobs
follow it, a header is at byte 8: `eh00`, u32 header length, and as u64 the size of the program, the
start of the blobs and their total size.

Layout of a `.ptd` (extension/flat_tensor/serialize): the flatbuffer's root offset and identifier,
then at byte 8 a header: `FH01`, u32 header length, and as u64 the flatbuffer's offset and size, the
start of the blobs and their total size. The flatbuffer's own offsets count from byte 0.
"""

import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from eagle_aot.common.errors import ArtifactError
from eagle_aot.runtime_runner.program.flatbuffer import (
    Segments,
    Table,
    UnreadableError,
    opened,
    part,
)
from eagle_aot.runtime_runner.program.plan import CudaMethod, Plan
from eagle_aot.runtime_runner.program.weight_table import Weight, read_weight_table

__all__ = ["CudaMethod", "Program", "TensorData", "Weight", "check_caches", "check_weights"]

IDENTIFIER = b"ET12"
HEADER = b"eh00"
# Fields in schema/program.fbs, numbered in the order of their declaration.
PLANS, SEGMENTS, NAMED_DATA = 1, 4, 7  # Program
LOCATION, INDEX = 0, 1  # BackendDelegateDataReference
SEGMENT = 1  # DataLocation
DATA_IDENTIFIER = b"FT01"
DATA_HEADER = b"FH01"
DATA_SEGMENTS, DATA_NAMES = 1, 2  # FlatTensor in flat_tensor.fbs


class Program:
    """The parts of a program that a runner needs: constants, CUDA methods and the blobs they name.

    Methods of other backends are left out, and so are constants that are tensors.
    """

    def __init__(self, path: Path, root: Table, area: memoryview) -> None:
        """Read the program from its `root` table; the blobs lie in `area`."""
        self.path = path
        self._segments = Segments(path, area, root.tables(SEGMENTS), root.tables(NAMED_DATA))
        plans = [Plan(table) for table in root.tables(PLANS)]
        constants = {plan.name: plan.constants() for plan in plans}
        self.constants: Mapping[str, list[Any]] = {
            name: values for name, values in constants.items() if values is not None
        }
        self.methods: Mapping[str, CudaMethod] = {
            plan.name: self._cuda_method(plan) for plan in plans if plan.uses_cuda()
        }

    @classmethod
    def open(cls, path: Path) -> "Program":
        """Map a file. Raises ArtifactError when it is missing, damaged or of another version."""
        with opened(path) as data:
            program, area = data, data[:0]
            if bytes(data[8:12]) == HEADER:
                size, base, area_size = struct.unpack_from("<3Q", data, 16)
                program, area = part(data, 0, size), part(data, base, area_size)
            return cls(path, Table.root(program, IDENTIFIER), area)

    def named_data(self, key: str) -> memoryview:
        """Return a blob by its name, writable without changing the file.

        Raises ArtifactError when there is no such blob.
        """
        return self._segments.storage(key)

    def _cuda_method(self, plan: Plan) -> CudaMethod:
        processed, input_order, output_order = plan.cuda_call()
        if processed.number(LOCATION, "b") != SEGMENT:
            raise UnreadableError(f"method {plan.name!r} stores its weight table inline")
        payload = self._segments.parts[processed.number(INDEX, "I")]
        library, weights = read_weight_table(payload)
        self.named_data(library)
        return CudaMethod(plan.name, library, weights, input_order, output_order)


class TensorData(Segments):
    """A `.ptd` file: the storages of a program's weights, by their keys."""

    @classmethod
    def open(cls, path: Path) -> "TensorData":
        """Map a file. Raises ArtifactError when it is missing, damaged or of another version."""
        with opened(path) as data:
            magic, _, offset, size, base, area_size = struct.unpack_from("<4sI4Q", data, 8)
            if magic != DATA_HEADER:
                raise UnreadableError("not a weight file (its header is missing)")
            root = Table.root(part(data, 0, offset + size), DATA_IDENTIFIER)
            area = part(data, base, area_size)
            return cls(path, area, root.tables(DATA_SEGMENTS), root.tables(DATA_NAMES))


def check_weights(program: Program, data: TensorData) -> None:
    """Raise ArtifactError unless `data` holds every storage [bytes] of the program's weights, with
    the same length. Files of two different exports do not."""
    for method in program.methods.values():
        for weight in method.weights:
            key, length = weight.storage_key, len(data.storage(weight.storage_key))
            if length != weight.storage_nbytes:
                raise ArtifactError(
                    f"{data.path}: {key!r} has {length} bytes, {program.path.name} expects "
                    f"{weight.storage_nbytes}: export again"
                )


def check_caches(program: Program, caches: Collection[str]) -> None:
    """Raise ArtifactError unless all `caches` are buffers of the program: others might share
    memory."""
    weights = {weight.fqn for method in program.methods.values() for weight in method.weights}
    for name in sorted(set(caches) - weights):
        raise ArtifactError(f"{program.path}: has no cache {name!r}: export again")
