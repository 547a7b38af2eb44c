"""Which tokens a reader is told of, and in which words."""

from types import SimpleNamespace
from typing import Any

import pytest

from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.serve.api.logprobs import Shown, of_chat, of_completion, spelled


class Bytes:
    """Token 0 is special, 1 and 2 are halves of a character, others are letters."""

    def __call__(self, token: int) -> bytes:
        return {0: b"<eos>", 1: b"\xc3", 2: b"\xa9"}.get(token, bytes([94 + token]))

    def is_special(self, token: int) -> bool:
        return token == 0


def tokens(*placed: tuple[int, int]) -> list[TokenLogprobs]:
    """Ids and offsets."""
    return [TokenLogprobs(token, -0.5, ((token, -0.5), (9, -1.5)), at) for token, at in placed]


def ended(reason: str) -> Any:
    return SimpleNamespace(finish_reason=reason)


def test_tokens_come_with_their_text() -> None:
    """Halves of a character with the whole one, and what a stop text held back when it is shown."""
    shown, told = Shown(), tokens((3, 0), (1, 1), (2, 1), (4, 2), (5, 3))
    assert shown.more(told[:2], "a") == told[:1]
    assert shown.more(told[2:3], "é") == told[1:3]
    assert shown.more(told[3:], "") == []
    assert shown.more([], "bc") == told[3:]
    assert shown.rest(ended("length")) == []


@pytest.mark.parametrize(("reason", "count"), [("stop", 0), ("length", 2), ("context", 2)])
def test_what_ended_a_text_is_not_told_of(reason: str, count: int) -> None:
    """Be it an id or a text; without a stop all that was generated is told, and of an echo all."""
    shown, told = Shown(), tokens((3, 0), (4, 1), (0, 2))
    assert shown.more(told, "a") == told[:1]
    assert shown.rest(ended(reason)) == told[1:][:count]
    echo = Shown(every=True)
    assert echo.more(told, "a") + echo.rest(ended(reason)) == told


def test_the_words_of_a_chat() -> None:
    first, half = of_chat(tokens((3, 0), (1, 1)), Bytes())["content"]  # type: ignore[arg-type]
    likeliest = [
        {"token": "a", "logprob": -0.5, "bytes": [97]},
        {"token": "g", "logprob": -1.5, "bytes": [103]},
    ]
    assert first == likeliest[0] | {"top_logprobs": likeliest}
    assert (half["token"], half["bytes"]) == ("bytes:\\xc3", [195])
    (special,) = of_chat(tokens((0, 0)), Bytes())["content"]  # type: ignore[arg-type]
    assert (special["token"], special["bytes"]) == ("<eos>", None)


def test_the_words_of_a_completion() -> None:
    """The token itself is among the likeliest, whether it is one of them or not."""
    rare = TokenLogprobs(5, -7.0, ((3, -0.1), (4, -2.0)), 4)
    found = of_completion([*tokens((3, 3)), rare], Bytes())  # type: ignore[arg-type]
    assert found == {
        "tokens": ["a", "c"],
        "token_logprobs": [-0.5, -7.0],
        "top_logprobs": [{"a": -0.5, "g": -1.5}, {"a": -0.1, "b": -2.0, "c": -7.0}],
        "text_offset": [3, 4],
    }
    first = of_completion([TokenLogprobs(0, None, (), 0)], Bytes())  # type: ignore[arg-type]
    assert first == {
        "tokens": ["<eos>"], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0]
    }  # fmt: skip


def test_bytes_that_are_no_text_are_told_as_bytes() -> None:
    assert spelled("é".encode()) == "é" and spelled(b"\xe2\x80") == "bytes:\\xe2\\x80"
