from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.runtime_runner.prompts.chunks import Chunk, plan_chunks


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
            assert len(chunk) == longest or len(chunk) >= 2 * window


@given(st.integers(1, 300), st.integers(1, 70), st.integers(1, 8), st.data())
def test_what_is_kept_is_not_run(
    length: int, longest: int, window: int, data: st.DataObject
) -> None:
    """Whole chunks, or any rows behind them."""
    whole = [c for c in plan_chunks(length, longest, 1, window) if not c.few_rows]
    behind = max((chunk.stop for chunk in whole), default=0)
    rest = range(behind, length)
    kept = data.draw(st.sampled_from([*(chunk.start for chunk in whole), *rest]))
    chunks = plan_chunks(length, longest, 1, window, kept)
    rows = [p for chunk in chunks for p in range(chunk.start, chunk.stop)]
    assert rows == list(range(kept, length))
    assert [c for c in chunks if not c.few_rows] == [c for c in whole if c.start >= kept]


def test_what_fills_no_chunk_goes_through_target_verify() -> None:
    assert plan_chunks(17, 16, 9, 8) == [Chunk(0, 16, False), Chunk(16, 17, True)]
    assert plan_chunks(15, 16, 9, 8) == [Chunk(0, 8, True), Chunk(8, 15, True)]
    assert plan_chunks(40, 16, 9, 8) == [
        Chunk(0, 16, False), Chunk(16, 32, False), Chunk(32, 40, True),
    ]  # fmt: skip
    assert plan_chunks(17, 8, 9, 20) == [Chunk(0, 17, True)]


def test_what_fills_half_a_chunk_is_one() -> None:
    """Not down to what `target_verify` takes in two forwards, or in one."""
    lengths = [len(chunk) for chunk in plan_chunks(512 + 256 + 200, 512, 65, 64)]
    assert lengths == [512, 256, 128, 64, 8]
