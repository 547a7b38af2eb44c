"""Reading FlatBuffers tables (flatbuffers.dev/internals) from bytes that may be damaged.

A table begins with the distance back to its vtable: u16 own length, u16 length of the table, then
per field the u16 offset of its value in the table, 0 if absent. Strings, vectors and tables inside
a table are stored as a u32 distance forward. Fields are numbered in the order of the schema; a
union takes two numbers, its kind and its value.
"""

import struct
from collections.abc import Iterator
from typing import Any, NoReturn

from eagle_aot.runtime_runner.program.untrusted_file import UntrustedBytes

SMALLEST_TABLE = 8  # bytes: the way to its vtable and one value


class Table:
    """One table. Absent numbers read as 0 and absent vectors as empty, as the format defines."""

    def __init__(self, data: UntrustedBytes, start: int) -> None:
        self.data = data
        self._start = start
        (back,) = data.unpack("i", start)
        self._vtable = start - back
        self._vtable_length, self._length = data.unpack("HH", self._vtable)
        data.require(self._vtable, self._vtable_length)
        data.require(start, self._length)

    @classmethod
    def root(cls, data: UntrustedBytes, identifier: bytes) -> "Table":
        """The root table of a buffer that must carry the identifier (bytes 4 to 8)."""
        offset, found = data.unpack("I4s", 0)
        if found != identifier:
            data.refuse(f"not a {identifier.decode()} file (it begins with {found!r})")
        return cls(data, offset)

    def require_version(self, field: int, newest: int) -> None:
        """Refuse a schema version that this reader does not know."""
        version = self.number(field, "I")
        if version > newest:
            self.data.refuse(f"of schema version {version}, this runner reads {newest}")

    def number(self, field: int, kind: str) -> Any:
        """A scalar in the notation of `struct`: q, I, b, d, ?."""
        width = struct.calcsize("<" + kind)
        place = self._place(field, width)
        if place is None:
            return struct.unpack("<" + kind, bytes(width))[0]
        return self.data.unpack(kind, place)[0]

    def text(self, field: int) -> str:
        """A string, which must be there."""
        start, length = self._list(field, 1, required=True)
        return self.data.text(start, length)

    def table(self, field: int) -> "Table":
        """A table, which must be there."""
        place = self._place(field, 4)
        return self._absent(field) if place is None else Table(self.data, self._follow(place))

    def union(self, field: int) -> "tuple[int, Table]":
        """Kind and value of a union, which must be there; `field` is the number of its kind."""
        return self.number(field, "B") or self._absent(field), self.table(field + 1)

    def numbers(self, field: int, kind: str) -> tuple[Any, ...]:
        """A vector of scalars in the notation of `struct`."""
        start, count = self._list(field, struct.calcsize("<" + kind))
        return self.data.unpack(f"{count}{kind}", start)

    def blob(self, field: int) -> UntrustedBytes:
        """A vector of bytes, which is not gone through here."""
        return self.data.part(*self._vector(field, 1))

    def tables(self, field: int) -> "Tables":
        """A vector of tables."""
        return Tables(self.data, *self._list(field, 4))

    def _place(self, field: int, length: int) -> int | None:
        """Where the value of a field is, or None."""
        slot = 4 + 2 * field
        if slot + 2 > self._vtable_length:
            return None
        (offset,) = self.data.unpack("H", self._vtable + slot)
        if offset == 0:
            return None
        if offset + length > self._length:
            self.data.refuse(f"damaged (field {field} leaves its table at {self._start})")
        return self._start + offset

    def _follow(self, place: int) -> int:
        (distance,) = self.data.unpack("I", place)
        return place + distance

    def _vector(self, field: int, width: int, required: bool = False) -> tuple[int, int]:
        """Start of the first element and their number; u32 number, then the elements."""
        place = self._place(field, 4)
        if place is None:
            return self._absent(field) if required else (0, 0)
        start = self._follow(place)
        (count,) = self.data.unpack("I", start)
        self.data.require(start + 4, count * width)
        return start + 4, count

    def _list(self, field: int, width: int, required: bool = False) -> tuple[int, int]:
        """A vector that is gone through."""
        start, count = self._vector(field, width, required)
        self.data.spend(count * width)
        return start, count

    def _absent(self, field: int) -> NoReturn:
        self.data.refuse(f"damaged (field {field} is missing from the table at {self._start})")


class Tables:
    """A vector of tables, each of them read when asked for."""

    def __init__(self, data: UntrustedBytes, start: int, count: int) -> None:
        self._data = data
        self._start = start
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Table]:
        return (self.at(index, "entry") for index in range(self._count))

    def at(self, index: int, what: str) -> Table:
        """One of them; an index outside the vector is refused, calling it `what`."""
        if not 0 <= index < self._count:
            self._data.refuse(f"damaged ({what} {index} of {self._count})")
        self._data.spend(SMALLEST_TABLE)  # a hostile list may name one table a million times
        place = self._start + 4 * index
        return Table(self._data, place + self._data.unpack("I", place)[0])
