from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk, plan_chunks, prefilled_rows


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
