"""A text that begins anew, in other pieces: nothing of it is told twice, and nothing left out."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.serve.answers import Piece
from eagle_aot.runtime_runner.serve.on_ray.told import Told

TEXT = "abcdefghijklmnop"
TOKENS = [TokenLogprobs(i, -float(i)) for i in range(12)]


def pieces(cuts: list[tuple[int, int]]) -> list[Piece]:
    """The whole text and all of its tokens, in parts that need not go together."""
    found, text, token = [], 0, 0
    for characters, tokens in [*cuts, (len(TEXT), len(TOKENS))]:
        part = TOKENS[token : token + tokens]
        trace: dict[str, Any] = {"trace": {"tokens": [{"id": one.id} for one in part]}}
        found.append(Piece(TEXT[text : text + characters], trace if part else {}, part))
        text, token = text + characters, token + tokens
    return found


cuts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8)


@given(attempts=st.lists(st.tuples(cuts, st.integers(0, 8)), max_size=4), last=cuts)
def test_what_was_told_is_not_told_again(
    attempts: list[tuple[list[tuple[int, int]], int]], last: list[tuple[int, int]]
) -> None:
    told, found = Told(), list[Piece]()
    for cut, count in attempts:
        found += [told.rest(piece) for piece in pieces(cut)[:count]]
        told.again()
    found += [told.rest(piece) for piece in pieces(last)]
    assert "".join(piece.text for piece in found) == TEXT
    assert [one for piece in found for one in piece.logprobs] == TOKENS
    traces = [piece.trace["trace"]["tokens"] for piece in found if piece.trace]
    assert [one["id"] for part in traces for one in part] == [one.id for one in TOKENS]
    assert all(traces)
