"""Which tokens a response has log probabilities of, and in which form."""

from types import SimpleNamespace
from typing import Any

import pytest

from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.serve.api.responses import (
    VisibleLogprobs,
    chat_logprobs,
    completion_logprobs,
    printed,
)


class Bytes:
    """Token 0 is special, 1 and 2 are halves of a character, others are letters."""

    def __call__(self, token: int) -> bytes:
        return {0: b"<eos>", 1: b"\xc3", 2: b"\xa9"}.get(token, bytes([94 + token]))

    def is_special(self, token: int) -> bool:
        return token == 0


def tokens(*pairs: tuple[int, int]) -> list[TokenLogprobs]:
    """Return tokens with these ids and offsets."""
    return [TokenLogprobs(token, -0.5, ((token, -0.5), (9, -1.5)), at) for token, at in pairs]


def ended(reason: str) -> Any:
    return SimpleNamespace(finish_reason=reason)


def test_tokens_come_with_their_text() -> None:
    """Halves of a character come with the whole one, and text that was withheld because it might
    begin a stop text when it is passed on."""
    visible, logprobs = VisibleLogprobs(), tokens((3, 0), (1, 1), (2, 1), (4, 2), (5, 3))
    assert visible.add(logprobs[:2], "a") == logprobs[:1]
    assert visible.add(logprobs[2:3], "é") == logprobs[1:3]
    assert visible.add(logprobs[3:], "") == []
    assert visible.add([], "bc") == logprobs[3:]
    assert visible.finish(ended("length")) == []


@pytest.mark.parametrize(("reason", "count"), [("stop", 0), ("length", 2), ("context", 2)])
def test_tokens_that_ended_a_text_are_not_reported(reason: str, count: int) -> None:
    """Whether an id or a text ended it. Without a stop all tokens are reported, and with an echo
    always."""
    visible, logprobs = VisibleLogprobs(), tokens((3, 0), (4, 1), (0, 2))
    assert visible.add(logprobs, "a") == logprobs[:1]
    assert visible.finish(ended(reason)) == logprobs[1:][:count]
    echo = VisibleLogprobs(all_tokens=True)
    assert echo.add(logprobs, "a") + echo.finish(ended(reason)) == logprobs


def test_log_probabilities_of_a_chat() -> None:
    first, half = chat_logprobs(tokens((3, 0), (1, 1)), Bytes())["content"]  # type: ignore[arg-type]
    likeliest = [
        {"token": "a", "logprob": -0.5, "bytes": [97]},
        {"token": "g", "logprob": -1.5, "bytes": [103]},
    ]
    assert first == likeliest[0] | {"top_logprobs": likeliest}
    assert (half["token"], half["bytes"]) == ("bytes:\\xc3", [195])
    (special,) = chat_logprobs(tokens((0, 0)), Bytes())["content"]  # type: ignore[arg-type]
    assert (special["token"], special["bytes"]) == ("<eos>", None)


def test_log_probabilities_of_a_completion() -> None:
    """The token itself is among the likeliest, whether it is one of them or not."""
    rare = TokenLogprobs(5, -7.0, ((3, -0.1), (4, -2.0)), 4)
    result = completion_logprobs([*tokens((3, 3)), rare], Bytes())  # type: ignore[arg-type]
    assert result == {
        "tokens": ["a", "c"],
        "token_logprobs": [-0.5, -7.0],
        "top_logprobs": [{"a": -0.5, "g": -1.5}, {"a": -0.1, "b": -2.0, "c": -7.0}],
        "text_offset": [3, 4],
    }
    first = completion_logprobs([TokenLogprobs(0, None, (), 0)], Bytes())  # type: ignore[arg-type]
    assert first == {
        "tokens": ["<eos>"], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0]
    }  # fmt: skip


def test_bytes_that_are_no_text_are_escaped() -> None:
    assert printed("é".encode()) == "é" and printed(b"\xe2\x80") == "bytes:\\xe2\\x80"
