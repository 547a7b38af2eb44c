"""A repeated answer, in other parts: nothing of it is sent twice, and nothing is left out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.serve.answer_stream import AnswerDelta

pytest.importorskip("ray", reason="needs pip install 'eagle-aot[ray]'")

from eagle_aot.runtime_runner.serve.on_ray.replicas import ReplayFilter

TEXT = "abcdefghijklmnop"
TOKENS = [TokenLogprobs(i, -float(i)) for i in range(12)]


def deltas(cuts: list[tuple[int, int]]) -> list[AnswerDelta]:
    """The whole text and all of its tokens, in parts that need not match."""
    parts, text, token = [], 0, 0
    for characters, tokens in [*cuts, (len(TEXT), len(TOKENS))]:
        part = TOKENS[token : token + tokens]
        trace: dict[str, Any] = {"trace": {"tokens": [{"id": item.id} for item in part]}}
        ids = [item.id for item in part]
        parts.append(AnswerDelta(TEXT[text : text + characters], trace if part else {}, part, ids))
        text, token = text + characters, token + tokens
    return parts


cuts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8)


@given(attempts=st.lists(st.tuples(cuts, st.integers(0, 8)), max_size=4), last=cuts)
def test_parts_that_were_sent_are_not_sent_again(
    attempts: list[tuple[list[tuple[int, int]], int]], last: list[tuple[int, int]]
) -> None:
    replay, sent = ReplayFilter(), list[AnswerDelta]()
    for cut, count in attempts:
        sent += [replay.unseen(delta) for delta in deltas(cut)[:count]]
        replay.restart()
    sent += [replay.unseen(delta) for delta in deltas(last)]
    assert "".join(delta.text for delta in sent) == TEXT
    assert [item for delta in sent for item in delta.logprobs] == TOKENS
    traces = [delta.trace["trace"]["tokens"] for delta in sent if delta.trace]
    assert [item["id"] for part in traces for item in part] == [item.id for item in TOKENS]
    assert [token for delta in sent for token in delta.tokens] == [item.id for item in TOKENS]
    assert all(traces)
