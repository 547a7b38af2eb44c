"""The FlatBuffers reader, against buffers that Google's library wrote."""

import math
from pathlib import Path
from typing import Any

import flatbuffers
import pytest
from flatbuffers import number_types
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.common.errors import ArtifactError
from eagle_aot.runtime_runner.program.flatbuffer import (
    DAMAGE,
    VERSION,
    Table,
    UnreadableError,
    opened,
    part,
)
from support.files.cuda import Edit, damaged, edits

NAME = b"TEST"
# Fields of the table that `written` writes, which says no version.
NUMBER, TEXT, NUMBERS, TABLES, KIND, CHILD, ABSENT = range(1, 8)


def root(data: bytes) -> Table:
    return Table.root(memoryview(data), NAME)


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
    string, last = builder.CreateString(text), child(builder, 9)
    builder.StartObject(7)
    builder.PrependInt64Slot(NUMBER, number, 0)
    builder.PrependUOffsetTRelativeSlot(TEXT, string, 0)
    builder.PrependUOffsetTRelativeSlot(NUMBERS, vector, 0)
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
        [kid.number(0, "q") for kid in table.tables(TABLES)],
        kind,
        last.number(0, "q"),
    )


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
    assert found == (number, text, numbers, list(range(children)), 3, 9)


@pytest.mark.parametrize(("kind", "flags", "value"), [
    ("?", number_types.BoolFlags, True),
    ("b", number_types.Int8Flags, -128),
    ("B", number_types.Uint8Flags, 255),
    ("i", number_types.Int32Flags, -(2**31)),
    ("I", number_types.Uint32Flags, 2**32 - 1),
    ("q", number_types.Int64Flags, -(2**63)),
    ("Q", number_types.Uint64Flags, 2**64 - 1),
    ("d", number_types.Float64Flags, -math.inf),
    ("d", number_types.Float64Flags, 5e-324),
])  # fmt: skip
def test_numbers_of_every_width(kind: str, flags: Any, value: Any) -> None:
    builder = flatbuffers.Builder()
    builder.StartObject(3)
    builder.PrependSlot(flags, 1, value, 0)
    builder.Finish(builder.EndObject(), file_identifier=NAME)
    table = root(bytes(builder.Output()))
    assert table.number(1, kind) == value and type(table.number(1, kind)) is type(value)
    assert table.number(0, kind) == table.number(2, kind) == 0


def test_absent_fields_read_as_defaults_or_are_refused() -> None:
    table = root(written())
    for field in (ABSENT, ABSENT + 1, 500, 40_000):
        assert table.number(field, "q") == 0
        assert table.numbers(field, "q") == () and table.tables(field) == []
        for read in (table.text, table.table, table.union):
            with pytest.raises(LookupError, match="is missing from the table"):
                read(field)


def test_flatbuffers_with_other_identifiers_or_versions_are_refused() -> None:
    with pytest.raises(UnreadableError, match=r"^not a TEST file"):
        root(written().replace(NAME, b"\nX\0Y"))
    builder = flatbuffers.Builder()
    builder.StartObject(1)
    builder.PrependUint32Slot(VERSION, 3, 0)
    builder.Finish(builder.EndObject(), file_identifier=NAME)
    with pytest.raises(UnreadableError, match=r"^schema version 3, this runner reads 0"):
        root(bytes(builder.Output()))


@settings(max_examples=500, deadline=None)
@given(damage=edits())
def test_any_damage_is_read_or_refused(damage: list[Edit]) -> None:
    try:
        read_all(damaged(written(), written(text="another"), damage))
    except (UnreadableError, *DAMAGE):
        pass


def test_bytes_that_are_not_there() -> None:
    data = memoryview(b"12345678")
    assert bytes(part(data, 8, 0)) == b"" and bytes(part(data, 2, 3)) == b"345"
    for start, length in ((9, 0), (0, 9), (2**64, 2**64)):
        with pytest.raises(IndexError, match="points at byte"):
            part(data, start, length)


@pytest.mark.parametrize(("error", "line"), [
    (UnreadableError("of another kind"), "of another kind"),
    (IndexError("points elsewhere"), "damaged (points elsewhere)"),
    (OSError("gone"), "cannot be read (gone)"),
])  # fmt: skip
def test_errors_of_damaged_flatbuffers_are_one_line(
    tmp_path: Path, error: Exception, line: str
) -> None:
    path = tmp_path / "a.pte"
    path.write_bytes(b"content")
    with pytest.raises(ArtifactError) as refused, opened(path):
        raise error
    assert str(refused.value) == f"{path}: {line}: export again"
