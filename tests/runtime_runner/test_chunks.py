from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.runtime_runner.chunks import Chunk, plan_chunks


@given(st.integers(1, 300), st.integers(1, 70), st.integers(2, 20), st.integers(1, 8))
def test_chunks_cover_the_prompt_and_fit_a_method(
    length: int, longest: int, min_prefill: int, window: int
) -> None:
    chunks = plan_chunks(length, longest, min_prefill, window)
    assert [p for chunk in chunks for p in range(chunk.start, chunk.stop)] == list(range(length))
    for chunk in chunks:
        assert (len(chunk) <= window) if chunk.few_rows else (len(chunk) == longest >= min_prefill)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 70))
def test_a_text_that_grows_is_cut_at_the_same_places(
    length: int, behind: int, longest: int
) -> None:
    before, after = (
        [chunk for chunk in plan_chunks(n, longest, 1, 64) if not chunk.few_rows]
        for n in (length, length + behind)
    )
    assert after[: len(before)] == before


@given(st.integers(1, 300), st.integers(1, 70), st.data())
def test_what_is_kept_is_not_run(length: int, longest: int, data: st.DataObject) -> None:
    """Whole chunks, or any rows behind them."""
    whole = length - length % longest
    rest = st.integers(whole, length - 1) if whole < length else st.just(0)
    kept = data.draw(st.sampled_from(range(0, whole, longest)) | rest if whole else rest)
    chunks = plan_chunks(length, longest, 1, 64, kept)
    rows = [p for chunk in chunks for p in range(chunk.start, chunk.stop)]
    assert rows == list(range(kept, length))
    assert all(chunk.few_rows == (chunk.start >= whole) for chunk in chunks)


def test_what_fills_no_chunk_goes_through_target_verify() -> None:
    assert plan_chunks(17, 16, 9, 8) == [Chunk(0, 16, False), Chunk(16, 17, True)]
    assert plan_chunks(15, 16, 9, 8) == [Chunk(0, 8, True), Chunk(8, 15, True)]
    assert plan_chunks(40, 16, 9, 8) == [
        Chunk(0, 16, False), Chunk(16, 32, False), Chunk(32, 40, True),
    ]  # fmt: skip
    assert plan_chunks(17, 8, 9, 20) == [Chunk(0, 17, True)]
