"""FlatBuffers tables by the numbers of their fields, and the blobs stored with them.

A schema numbers the fields of a table in the order of their declaration; a union takes two numbers,
its kind and its value.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flatbuffers.table import Table as Fields

from eagle_aot.common.errors import ArtifactError

# Of both schemas of ExecuTorch: the first field of their root, and the newest that is read here.
VERSION, NEWEST = 0, 0
# Fields of DataSegment and NamedData, which both define alike.
OFFSET, SIZE = 0, 1
KEY, SEGMENT_INDEX = 0, 1

DAMAGE = (struct.error, LookupError, TypeError, ValueError)
"""What reading raises if offsets point outside the data; flatbuffers raises TypeError."""


class UnreadableError(Exception):
    """An undamaged file of a format or version that this runner does not read."""


@contextmanager
def opened(path: Path) -> Iterator[memoryview]:
    """Map a whole file copy-on-write: a tensor may share its memory without changing the file.

    Raises ArtifactError, in one line, for a file that is missing or that the block cannot read.
    """
    if not path.is_file():  # reading a pipe or a device could block
        raise ArtifactError(f"{path}: missing: export again")
    try:
        with path.open("rb") as file:
            yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error}): export again") from error
    except UnreadableError as error:
        raise ArtifactError(f"{path}: {error}: export again") from error
    except DAMAGE as error:
        raise ArtifactError(f"{path}: damaged ({error}): export again") from error


def part(data: memoryview, start: int, length: int) -> memoryview:
    """Return `length` bytes from `start`. Raises IndexError where the data ends before."""
    if start + length > len(data):
        raise IndexError(f"points at byte {start + length} of {len(data)}")
    return data[start : start + length]


class Table:
    """One table. Absent numbers read as 0 and absent vectors as empty, as the format defines.

    An offset that points outside the buffer raises one of DAMAGE.
    """

    def __init__(self, data: memoryview, start: int) -> None:
        self._data = data
        self._fields = Fields(data, start)

    @classmethod
    def root(cls, data: memoryview, identifier: bytes) -> "Table":
        """Return the root of one of ExecuTorch's files. Raises UnreadableError for any other."""
        offset, magic = struct.unpack_from("<I4s", data)
        if magic != identifier:
            raise UnreadableError(f"not a {identifier.decode()} file (it begins with {magic!r})")
        table = cls(data, offset)
        if (version := table.number(VERSION, "I")) > NEWEST:
            raise UnreadableError(f"schema version {version}, this runner reads {NEWEST}")
        return table

    def number(self, field: int, kind: str) -> Any:
        """Return a scalar; `kind` is in the notation of `struct`: q, I, b, d, ?."""
        offset = self._offset(field)
        return struct.unpack_from(f"<{kind}", self._data if offset else bytes(8), offset)[0]

    def text(self, field: int) -> str:
        """Return a string. Raises LookupError where the field is absent."""
        return str(self._fields.String(self._required(field)), "utf-8")

    def table(self, field: int) -> "Table":
        """Return a table. Raises LookupError where the field is absent."""
        return Table(self._data, self._fields.Indirect(self._required(field)))

    def union(self, field: int) -> "tuple[int, Table]":
        """Return kind and value of a union; `field` is the number of its kind.

        Raises LookupError where the field is absent.
        """
        return self.number(field, "B"), self.table(field + 1)

    def numbers(self, field: int, kind: str) -> tuple[Any, ...]:
        """Return a vector of scalars; `kind` is in the notation of `struct`."""
        if not (offset := self._fields.Offset(4 + 2 * field)):
            return ()
        layout = f"<{self._fields.VectorLen(offset)}{kind}"
        return struct.unpack_from(layout, self._data, self._fields.Vector(offset))

    def tables(self, field: int) -> "list[Table]":
        """Return a vector of tables."""
        distances = self.numbers(field, "I")
        start = self._fields.Vector(self._fields.Offset(4 + 2 * field)) if distances else 0
        return [Table(self._data, start + 4 * i + far) for i, far in enumerate(distances)]

    def _offset(self, field: int) -> int:
        """Return the offset of a field's value, 0 where it is absent."""
        offset: int = self._fields.Offset(4 + 2 * field)
        return offset and self._fields.Pos + offset

    def _required(self, field: int) -> int:
        offset = self._offset(field)
        if not offset:
            raise LookupError(f"field {field} is missing from the table at {self._fields.Pos}")
        return offset


class Segments:
    """Blobs by number, and the keys that name them. Several keys may name one blob."""

    def __init__(
        self, path: Path, area: memoryview, segments: list[Table], named: list[Table]
    ) -> None:
        """`segments` lie in `area`, where their offsets start."""
        self.path = path
        self.parts = [part(area, s.number(OFFSET, "Q"), s.number(SIZE, "Q")) for s in segments]
        self.keys = {entry.text(KEY): entry.number(SEGMENT_INDEX, "I") for entry in named}
        for index in self.keys.values():
            self.parts[index]

    def segment(self, key: str) -> int:
        """Return the number of a key's blob: equal numbers mean the same bytes.

        Raises ArtifactError when there is no such key.
        """
        if key not in self.keys:
            raise ArtifactError(f"{self.path}: holds no blob named {key!r}: export again")
        return self.keys[key]

    def storage(self, key: str) -> memoryview:
        """Return a key's blob, writable without changing the file. Raises ArtifactError."""
        return self.parts[self.segment(key)]
