"""Chunks of prompts: their lengths, no image is cut, and rows are copied in few calls."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.decode.prompt_chunks import (
    Chunk,
    plan_around,
    plan_chunks,
    prefilled_rows,
)
from eagle_aot.runtime_runner.decode.target import TargetMethods
from support.runner.logging_executor import CONSTANTS, LoggingExecutor


@given(st.integers(1, 300), st.integers(1, 70), st.integers(2, 20), st.integers(1, 8))
def test_chunks_cover_the_prompt_and_fit_a_method(
    length: int, longest: int, min_prefill: int, window: int
) -> None:
    chunks = plan_chunks(length, longest, min_prefill, window)
    assert [p for chunk in chunks for p in range(chunk.start, chunk.stop)] == list(range(length))
    for chunk in chunks:
        if chunk.few_rows:
            assert len(chunk) <= window
        else:
            assert min_prefill <= len(chunk) <= longest


@given(st.integers(1, 300), st.integers(1, 70), st.integers(1, 70), st.integers(1, 8), st.data())
def test_cached_rows_are_not_run_again(
    length: int, longest: int, least: int, window: int, data: st.DataObject
) -> None:
    """But for fewer rows than a chunk of `prefill` has; and each row runs by its own method."""
    kept = data.draw(st.integers(0, length - 1))
    chunks = plan_chunks(length, longest, least, window, kept)
    rows = [p for chunk in chunks for p in range(chunk.start, chunk.stop)]
    assert rows == list(range(chunks[0].start, length))
    assert kept - least < chunks[0].start <= kept
    assert all(least <= len(c) <= longest for c in chunks if not c.few_rows)
    whole = prefilled_rows(length, longest, least, window)
    assert all((chunk.stop <= whole) != chunk.few_rows for chunk in chunks)
    assert whole == sum(
        len(c) for c in plan_chunks(length, longest, least, window) if not c.few_rows
    )


@given(st.integers(1, 1000), st.sampled_from([96, 128, 512]), st.data())
def test_prompts_with_recurrent_states_are_cut_between_blocks(
    length: int, longest: int, data: st.DataObject
) -> None:
    kept = 32 * data.draw(st.integers(0, (length - 1) // 32))
    chunks = plan_chunks(length, longest, 96, 16, kept, block=32)
    assert all(chunk.start % 32 == chunk.stop % 32 == 0 for chunk in chunks if not chunk.few_rows)
    assert chunks[-1].stop == length and all(len(c) <= 16 for c in chunks if c.few_rows)


def test_number_of_chunks_is_minimal() -> None:
    assert [len(c) for c in plan_chunks(3000, 1024, 65, 64)] == [1024, 1024, 896, 56]
    assert [len(c) for c in plan_chunks(1152, 1024, 65, 64, reused=100)] == [987, 65]
    assert plan_chunks(1152, 1024, 65, 64, reused=1100) == [Chunk(1087, 1152, False)]


def test_rows_that_fill_no_forward_run_through_target_verify() -> None:
    assert plan_chunks(17, 16, 9, 8) == [Chunk(0, 16, False), Chunk(16, 17, True)]
    assert plan_chunks(15, 16, 9, 8) == [Chunk(0, 8, True), Chunk(8, 15, True)]
    assert [len(c) for c in plan_chunks(44, 16, 9, 8)] == [16, 15, 9, 4]
    assert plan_chunks(17, 8, 9, 20) == [Chunk(0, 17, True)]


def test_multiples_of_the_chunk_length_are_cut_evenly() -> None:
    assert [len(c) for c in plan_chunks(50, 20, 20, 8)] == [20, 20, 8, 2]
    assert [len(c) for c in plan_chunks(179, 96, 65, 64)] == [96, 64, 19]


SETTINGS = settings(max_examples=400, deadline=None, derandomize=True, database=None)
LEAST, ROWS = 65, 64


@st.composite
def prompts(draw: st.DrawFn, most: int) -> tuple[int, list[tuple[int, int]]]:
    """A length, and images of up to `most` rows with text between them and after the last."""
    at, spans = 0, []
    for _ in range(draw(st.integers(1, 4))):
        first = at + draw(st.integers(1, 150))
        at = first + draw(st.integers(1, most))
        spans.append((first, at))
    return at + draw(st.integers(1, 150)), spans


@SETTINGS
@given(st.data(), st.sampled_from([(96, 96), (128, 512), (1024, 1024)]))
def test_chunks_run_every_row_and_cut_no_image(data: st.DataObject, sizes: tuple[int, int]) -> None:
    length, spans = data.draw(prompts(min(sizes[1], 300)))
    kept = data.draw(st.integers(0, length - 1))
    chunks = plan_around(length, spans, sizes, LEAST, ROWS, kept)
    at = kept
    for chunk in chunks:
        assert chunk.start <= at < chunk.stop
        if chunk.few_rows:
            assert chunk.start == at and len(chunk) <= ROWS
            assert all(end <= chunk.start for _, end in spans)
        else:
            assert LEAST <= len(chunk) + chunk.padding <= max(sizes[1], LEAST)
            assert chunk.padding == max(0, LEAST - chunk.stop)
            assert not any(first < chunk.stop < end for first, end in spans)
        at = chunk.stop
    assert at == length and not chunks[-1].padding


def test_short_prompt_is_padded_after_its_image() -> None:
    assert plan_around(40, [(3, 30)], (96, 96), LEAST, ROWS) == [
        Chunk(0, 30, False, padding=35),
        Chunk(30, 40, True),
    ]


def test_chunk_grows_to_hold_an_image() -> None:
    """Where the program takes it."""
    whole = plan_around(300, [(60, 280)], (128, 512), LEAST, ROWS)
    assert whole == [Chunk(0, 280, False), Chunk(280, 300, True)]
    cut = plan_around(300, [(60, 280)], (240, 240), LEAST, ROWS)
    assert cut == [Chunk(0, 60, False, 5), Chunk(60, 280, False), Chunk(280, 300, True)]


def test_chunks_after_the_last_image_are_those_of_text() -> None:
    plain = plan_chunks(500, 128, LEAST, ROWS)
    around = plan_around(500, [(10, 100)], (128, 512), LEAST, ROWS)
    assert sum(len(c) for c in around if c.few_rows) == sum(len(c) for c in plain if c.few_rows)


@pytest.mark.parametrize(("device", "most", "longest"), [
    ("cpu", 512, 128), ("cuda", 512, 512), ("cpu", 96, 96), ("cuda", 96, 96),
])  # fmt: skip
def test_prompt_chunks_are_shorter_on_a_cpu(device: str, most: int, longest: int) -> None:
    executor = LoggingExecutor()
    executor.device = torch.device(device)
    constants = dataclasses.replace(CONSTANTS, max_prefill_chunk=most)
    plan = TargetMethods(executor, constants).plan_prompt(640)
    assert max(map(len, plan)) == longest
    assert sum(map(len, plan)) == 640


def test_rows_are_copied_in_the_fewest_calls() -> None:
    calls = []

    class Copying(LoggingExecutor):
        def run(self, method: str, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            calls.append((method, *(x.tolist() for x in inputs)))
            return ()

    target = TargetMethods(Copying(), CONSTANTS, can_copy_rows=True)
    target.copy_rows(torch.tensor([2]), torch.tensor([0]), CONSTANTS.max_prefill_chunk + 3)
    most = CONSTANTS.max_prefill_chunk
    assert calls == [
        ("copy_rows", [*range(most)], [2], [0]),
        ("copy_rows", [*range(most, most + 3)], [2], [0]),
    ]
