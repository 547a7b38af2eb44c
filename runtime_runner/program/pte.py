"""Reading a `.pte` file whose methods are lowered through ExecuTorch's CUDA backend.

Layout (exir/_serialize/_program.py): a flatbuffer of schema/program.fbs. When blobs follow it, a
header stands at byte 8: `eh00`, u32 header length, and as u64 the size of the program, the start
of the blobs and, in headers long enough, their total size.

ExecuTorch's own reader is part of its compiler and takes seconds to import; this one needs nothing
of it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle_aot.common.errors import ArtifactError
from eagle_aot.runtime_runner.program.flatbuffer import Table
from eagle_aot.runtime_runner.program.plan import CudaMethod, Plan
from eagle_aot.runtime_runner.program.ptd import TensorData
from eagle_aot.runtime_runner.program.segments import Segments
from eagle_aot.runtime_runner.program.untrusted_file import UntrustedBytes, shown
from eagle_aot.runtime_runner.program.weight_table import Weight, read_weight_table

__all__ = ["CudaMethod", "Program", "Weight", "check_weights"]

IDENTIFIER = b"ET12"
HEADER = b"eh00"
HEADER_LENGTH, LONG_HEADER_LENGTH = 24, 32
SCHEMA_VERSION = 0
# Fields in schema/program.fbs, numbered in the order of their declaration.
VERSION, PLANS, INLINE_DATA, SEGMENTS, NAMED_DATA = 0, 1, 3, 4, 7  # Program
DATA = 0  # BackendDelegateInlineData
LOCATION, INDEX = 0, 1  # BackendDelegateDataReference
INLINE, SEGMENT = 0, 1  # DataLocation


class Program:
    """What a runner needs of a program: constants, CUDA methods and the blobs they name."""

    def __init__(self, path: Path, root: Table, area: UntrustedBytes) -> None:
        """Read the program behind `root`, whose blobs lie in `area`. Raises ArtifactError."""
        self.path = path
        self._segments = Segments(area, root.tables(SEGMENTS), root.tables(NAMED_DATA))
        plans = read_plans(root)
        constants = {name: plan.constants() for name, plan in plans.items()}
        self.constants: Mapping[str, list[Any]] = {
            name: values for name, values in constants.items() if values is not None
        }
        self._inline = root.tables(INLINE_DATA)
        self._weight_tables: dict[tuple[int, int], tuple[str, tuple[Weight, ...]]] = {}
        self.methods: Mapping[str, CudaMethod] = {
            name: self._cuda_method(plan) for name, plan in plans.items() if plan.uses_cuda()
        }

    @classmethod
    def open(cls, path: Path) -> "Program":
        """Map a file. Raises ArtifactError when it is missing, damaged or of another version.

        Methods of other backends are left out, and so are constants that are tensors.
        """
        data = UntrustedBytes.of_file(path)
        program, area = split(data)
        root = Table.root(program, IDENTIFIER)
        root.require_version(VERSION, SCHEMA_VERSION)
        return cls(path, root, area)

    def named_data(self, key: str) -> memoryview:
        """A blob by its name, writable without changing the file.

        Raises ArtifactError when there is no such blob.
        """
        return self._segments.named(key)

    def _cuda_method(self, plan: Plan) -> CudaMethod:
        place, input_order, output_order = plan.cuda_call()
        library, weights = self._weight_table(place)
        self.named_data(library)
        return CudaMethod(plan.name, library, weights, input_order, output_order)

    def _weight_table(self, place: Table) -> tuple[str, tuple[Weight, ...]]:
        """The table that a delegate's data holds, read once: the writer keeps equal data once."""
        where = place.number(LOCATION, "b"), place.number(INDEX, "I")
        if where not in self._weight_tables:
            self._weight_tables[where] = read_weight_table(self._payload(place, *where))
        return self._weight_tables[where]

    def _payload(self, place: Table, location: int, index: int) -> UntrustedBytes:
        if location == INLINE:
            return self._inline.at(index, "delegate").blob(DATA)
        if location == SEGMENT:
            return self._segments.at(index)
        place.data.refuse(f"damaged (delegate data at the unknown location {location})")


def split(data: UntrustedBytes) -> tuple[UntrustedBytes, UntrustedBytes]:
    """The flatbuffer and the area of its blobs, which is empty in a file without a header."""
    magic, length = data.unpack("4sI", 8)
    if magic != HEADER:
        return data, data.part(len(data), 0)
    if length < HEADER_LENGTH:
        data.refuse(f"damaged (a header of {length} bytes)")
    size, base = data.unpack("2Q", 16)
    rest = len(data) - base
    area_size = data.unpack("Q", 32)[0] if length >= LONG_HEADER_LENGTH else rest
    return data.part(0, size), data.part(base, area_size)


def read_plans(root: Table) -> dict[str, Plan]:
    """Every method of a program by its name."""
    plans: dict[str, Plan] = {}
    for table in root.tables(PLANS):
        plan = Plan(table)
        if plan.name in plans:
            root.data.refuse(f"has two methods named {shown(plan.name)}")
        plans[plan.name] = plan
    return plans


def check_weights(program: Program, data: TensorData) -> None:
    """Raise ArtifactError unless `data` holds every storage that the program's weights are in,
    of the length they say, each for one device."""
    devices: dict[str, str] = {}
    for method in program.methods.values():
        for weight in method.weights:
            key, length = weight.storage_key, len(data.storage(weight.storage_key))
            if length != weight.storage_nbytes:
                raise ArtifactError(
                    f"{data.path}: {shown(key)} has {length} bytes, {program.path.name} expects "
                    f"{weight.storage_nbytes}: export again"
                )
            if devices.setdefault(key, weight.device) != weight.device:
                raise ArtifactError(f"{program.path}: {shown(key)} is on two devices: export again")
