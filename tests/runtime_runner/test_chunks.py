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
        assert len(chunk) <= longest
        assert (len(chunk) <= window) if chunk.few_rows else (len(chunk) >= min_prefill)


def test_a_short_tail_goes_through_target_verify() -> None:
    assert plan_chunks(17, 16, 9, 8) == [Chunk(0, 16, False), Chunk(16, 17, True)]
    assert plan_chunks(5, 16, 9, 8) == [Chunk(0, 5, True)]
    assert plan_chunks(40, 16, 9, 8) == [
        Chunk(0, 16, False), Chunk(16, 32, False), Chunk(32, 40, True),
    ]  # fmt: skip
