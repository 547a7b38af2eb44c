"""Lists whose entries share their bytes: little to write, and much to read."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import flatbuffers  # type: ignore[import-untyped]
import pytest
from executorch.exir import schema

from eagle_aot.runtime_runner.program.pte import IDENTIFIER, SEGMENTS, Program
from support.files.cuda import Files, refusal

REFUSED = "damaged (its lists are longer than the file, or than any model needs): export again"


def one_segment_many_times(count: int) -> bytes:
    """A program whose list of segments names one empty table again and again."""
    builder = flatbuffers.Builder()
    builder.StartObject(2)
    table = builder.EndObject()
    builder.StartVector(4, count, 4)
    for _ in range(count):
        builder.PrependUOffsetTRelative(table)
    tables = builder.EndVector()
    builder.StartObject(8)
    builder.PrependUOffsetTRelativeSlot(SEGMENTS, tables, 0)
    builder.Finish(builder.EndObject(), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def one_value_many_times(count: int) -> bytes:
    """A program whose constant method returns one value again and again."""

    def edit(program: schema.Program) -> None:
        program.execution_plan[0].outputs = [0] * count

    return Files(constants={"get_one": [1]}, edit=edit).program()


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("write", [one_segment_many_times, one_value_many_times])
@pytest.mark.parametrize("count", [1_000, 20_000])
def test_entries_that_share_their_bytes_are_not_all_read(
    tmp_path: Path, write: Callable[[int], bytes], count: int
) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(write(count))
    with memory_below(200 * count):
        line = refusal(lambda: Program.open(path), path)
    assert line == f"{path}: {REFUSED}"


def test_a_value_that_is_returned_twice_is_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(one_value_many_times(2))
    assert Program.open(path).constants == {"get_one": [1, 1]}
