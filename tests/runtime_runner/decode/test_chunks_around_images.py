"""Chunks of prompts with images: no image is cut, whatever the cache holds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk, plan_around, plan_chunks

SETTINGS = settings(max_examples=400, deadline=None, derandomize=True, database=None)
LEAST, ROWS = 65, 64


@st.composite
def prompts(draw: st.DrawFn, most: int) -> tuple[int, list[tuple[int, int]]]:
    """A length, and pictures of up to `most` rows with text between them and after the last."""
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
