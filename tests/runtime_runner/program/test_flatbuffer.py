"""The FlatBuffers reader, against buffers that Google's library wrote."""

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import pytest
from flatbuffers import number_types
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.program.flatbuffer import Table
from eagle_aot.runtime_runner.program.untrusted_file import MAX_DESCRIPTION, UntrustedBytes
from support.files.cuda import EXTREMES, Edit, damaged, edits, plausible_bytes, refusal

PATH = Path("a.pte")
NAME = b"TEST"
# Fields of the table that `written` writes.
NUMBER, TEXT, NUMBERS, BLOB, TABLES, KIND, CHILD, ABSENT = range(8)


def root(data: bytes) -> Table:
    return Table.root(UntrustedBytes(PATH, memoryview(data)), NAME)


def why(read: Callable[[], object]) -> str:
    line = refusal(read, PATH)
    assert line is not None, "it was accepted"
    return line.removeprefix(f"{PATH}: ")


def child(builder: flatbuffers.Builder, number: int) -> int:
    builder.StartObject(1)
    builder.PrependInt64Slot(0, number, 0)
    return builder.EndObject()


def written(
    number: int = -5, text: str = "Ä", numbers: tuple[int, ...] = (1, -2), children: int = 3
) -> bytes:
    """A table with one field of each type."""
    builder = flatbuffers.Builder()
    kids = [child(builder, i) for i in range(children)]
    builder.StartVector(4, len(kids), 4)
    for kid in reversed(kids):
        builder.PrependUOffsetTRelative(kid)
    tables = builder.EndVector()
    builder.StartVector(8, len(numbers), 8)
    for item in reversed(numbers):
        builder.PrependInt64(item)
    vector = builder.EndVector()
    string, blob, last = (
        builder.CreateString(text),
        builder.CreateByteVector(b"bytes"),
        child(builder, 9),
    )
    builder.StartObject(8)
    builder.PrependInt64Slot(NUMBER, number, 0)
    builder.PrependUOffsetTRelativeSlot(TEXT, string, 0)
    builder.PrependUOffsetTRelativeSlot(NUMBERS, vector, 0)
    builder.PrependUOffsetTRelativeSlot(BLOB, blob, 0)
    builder.PrependUOffsetTRelativeSlot(TABLES, tables, 0)
    builder.PrependUint8Slot(KIND, 3, 0)
    builder.PrependUOffsetTRelativeSlot(CHILD, last, 0)
    builder.Finish(builder.EndObject(), file_identifier=NAME)
    return bytes(builder.Output())


def read_all(data: bytes) -> tuple[Any, ...]:
    table = root(data)
    kind, last = table.union(KIND)
    return (
        table.number(NUMBER, "q"),
        table.text(TEXT),
        table.numbers(NUMBERS, "q"),
        bytes(table.blob(BLOB).view),
        [kid.number(0, "q") for kid in table.tables(TABLES)],
        kind,
        last.number(0, "q"),
    )


def test_every_type_reads_back() -> None:
    assert read_all(written()) == (-5, "Ä", (1, -2), b"bytes", [0, 1, 2], 3, 9)


@settings(max_examples=200, deadline=None)
@given(
    number=st.integers(-(2**63), 2**63 - 1),
    text=st.text(),
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1)).map(tuple),
    children=st.integers(0, 9),
)
def test_any_content_reads_back(
    number: int, text: str, numbers: tuple[int, ...], children: int
) -> None:
    found = read_all(written(number, text, numbers, children))
    assert found == (number, text, numbers, b"bytes", list(range(children)), 3, 9)


@pytest.mark.parametrize(
    ("kind", "flags", "value"),
    [
        ("?", number_types.BoolFlags, True),
        ("b", number_types.Int8Flags, -128),
        ("B", number_types.Uint8Flags, 255),
        ("i", number_types.Int32Flags, -(2**31)),
        ("I", number_types.Uint32Flags, 2**32 - 1),
        ("q", number_types.Int64Flags, -(2**63)),
        ("Q", number_types.Uint64Flags, 2**64 - 1),
        ("d", number_types.Float64Flags, -math.inf),
        ("d", number_types.Float64Flags, 5e-324),
    ],
)
def test_numbers_of_every_width(kind: str, flags: Any, value: Any) -> None:
    builder = flatbuffers.Builder()
    builder.StartObject(3)
    builder.PrependSlot(flags, 1, value, 0)
    builder.Finish(builder.EndObject(), file_identifier=NAME)
    table = root(bytes(builder.Output()))
    assert table.number(1, kind) == value and type(table.number(1, kind)) is type(value)
    assert table.number(0, kind) == table.number(2, kind) == 0


def test_what_is_absent() -> None:
    table = root(written())
    for field in (ABSENT, ABSENT + 1, 500, 40_000):
        assert table.number(field, "q") == 0 and table.numbers(field, "q") == ()
        assert len(table.tables(field)) == len(table.blob(field)) == 0
        for read in (table.text, table.table, table.union):
            message = why(lambda read=read, field=field: read(field))  # type: ignore[misc]
            assert message.startswith(f"damaged (field {field} is missing")


def test_an_index_outside_a_vector() -> None:
    tables = root(written()).tables(TABLES)
    assert tables.at(2, "child").number(0, "q") == 2
    for index in (3, -1, 2**31):
        message = why(lambda index=index: tables.at(index, "child"))  # type: ignore[misc]
        assert message.startswith(f"damaged (child {index} of 3)")


def test_a_number_wider_than_its_table() -> None:
    builder = flatbuffers.Builder()
    builder.StartObject(1)
    builder.PrependUint8Slot(0, 1, 0)
    builder.Finish(builder.EndObject(), file_identifier=NAME)
    table = root(bytes(builder.Output()))
    assert table.number(0, "B") == 1
    assert "damaged (field 0 leaves its table" in why(lambda: table.number(0, "q"))


def test_other_identifiers_and_versions() -> None:
    data = written(number=0)
    assert why(lambda: root(data.replace(NAME, b"\nX\0Y"))).startswith("not a TEST file")
    root(data).require_version(NUMBER, 0)
    newer = root(written(number=3))
    newer.require_version(NUMBER, 3)
    message = why(lambda: newer.require_version(NUMBER, 2))
    assert message.startswith("of schema version 3, this runner reads 2")


def test_every_truncation_is_read_or_refused() -> None:
    data = written()
    lines = [refusal(lambda n=n: read_all(data[:n]), PATH) for n in range(len(data))]  # type: ignore[misc]
    assert None not in lines[: len(data) // 2]


@pytest.mark.parametrize("value", EXTREMES)
def test_extremes_at_every_place(value: bytes) -> None:
    data = written()
    lines = [
        refusal(lambda p=p: read_all(data[:p] + value + data[p + len(value) :]), PATH)  # type: ignore[misc]
        for p in range(len(data))
    ]
    assert any(lines)


@settings(max_examples=1000, deadline=None)
@given(damage=edits())
def test_any_damage_is_read_or_refused(damage: list[Edit]) -> None:
    data = damaged(written(), written(text="another"), damage)
    refusal(lambda: read_all(data), PATH)


@settings(max_examples=500, deadline=None)
@given(rest=plausible_bytes(), start=st.integers(0, 64))
def test_anything_behind_a_header_is_read_or_refused(rest: bytes, start: int) -> None:
    data = struct.pack("<I", start) + NAME + rest
    refusal(lambda: read_all(data), PATH)


def lists_that_share_their_bytes(length: int) -> bytes:
    """A vector of `length` tables, all of them one, which holds a vector as long as the buffer."""
    builder = flatbuffers.Builder()
    builder.StartVector(8, length, 8)
    for _ in range(length):
        builder.PrependInt64(0)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    kid = builder.EndObject()
    builder.StartVector(4, length, 4)
    for _ in range(length):
        builder.PrependUOffsetTRelative(kid)
    tables = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, tables, 0)
    builder.Finish(builder.EndObject(), file_identifier=NAME)
    return bytes(builder.Output())


def test_lists_that_share_their_bytes_are_not_read_for_ever() -> None:
    data = lists_that_share_their_bytes(2000)
    message = why(lambda: [kid.numbers(0, "q") for kid in root(data).tables(0)])
    assert message.startswith("damaged (its lists are longer than the file")


def test_a_description_has_a_limit() -> None:
    data = UntrustedBytes(PATH, memoryview(bytes(MAX_DESCRIPTION + 8)))
    data.spend(MAX_DESCRIPTION)
    data.part(0, 8).spend(0)
    message = why(lambda: data.part(8, 8).spend(1))
    assert message.startswith("damaged (its lists are longer")


def test_bytes_that_are_not_there() -> None:
    data = UntrustedBytes(PATH, memoryview(b"12345678"))
    assert bytes(data.part(8, 0).view) == b"" and data.unpack("Q", 0) != (0,)
    for start, length in ((9, 0), (0, 9), (-1, 1), (4, -1), (2**64, 2**64)):
        message = why(lambda start=start, length=length: data.part(start, length))  # type: ignore[misc]
        assert message.startswith("damaged (points at byte")
    for layout, start in (("Q", 1), ("4294967295q", 0), ("0q", 9)):
        why(lambda layout=layout, start=start: data.unpack(layout, start))  # type: ignore[misc]
