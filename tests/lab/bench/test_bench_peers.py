"""Programs in processes of their own, and what is made of their answers."""

import sys
from typing import Any

import pytest

from bench_peers import LLAMA_CPP, TRANSFORMERS, Contender, report
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.lab.worker import Worker

COUNTING = """
import time
from eagle_aot.lab.peers.serving import serve
def decode(request, tell):
    for token in range(request["max_new_tokens"]):
        time.sleep(0.02)
        tell([request["tokens"][0] + token])
serve("counting 1", decode)
"""


def test_a_worker_answers_with_tokens_and_what_they_took() -> None:
    worker = Worker("counting", [sys.executable, "-c", COUNTING])
    assert worker.version == "counting 1"
    assert worker.resident_bytes() > 1e6
    for first in (5, 7):
        answer = worker.ask({"tokens": [first], "max_new_tokens": 4})
        assert answer["tokens"] == [first, first + 1, first + 2, first + 3]
        assert 0.02 <= answer["prompt_seconds"] < answer["decode_seconds"]
        assert answer["decode_seconds"] >= 0.06
    worker.close()


def test_one_that_does_not_come_up_says_why() -> None:
    broken = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(UnsupportedError, match=r"^peer: ended with 1: no such model$"):
        Worker("peer", broken)


class Idle:
    """In a worker's place."""

    version, load_seconds = "idle 1", 2.0

    def resident_bytes(self) -> int:
        return 3


def contender(name: str, *answers: tuple[list[int], float]) -> Contender:
    found: list[dict[str, Any]] = [
        {"tokens": tokens, "prompt_seconds": 0.5, "decode_seconds": seconds}
        for tokens, seconds in answers
    ]
    return Contender(name, Idle(), answers=found)  # type: ignore[arg-type]


def test_rates_are_medians_of_tokens_behind_the_first() -> None:
    prompts = [[1] * 10, [1] * 20, [1] * 30]
    ours = contender("ours", ([1, 2, 3], 0.1), ([4], 0.0), ([1, 2, 3, 4], 0.1))
    llama = contender(LLAMA_CPP, *[([1, 2, 3], 0.2)] * 3)
    theirs = contender(TRANSFORMERS, ([1, 2, 3], 1.0), ([4], 0.0), ([1, 2], 1.0))
    lines = {line.program: line for line in report([ours, llama, theirs], prompts)}
    assert lines["ours"].tokens_per_second == pytest.approx(25.0)
    assert lines["ours"].of_baseline == pytest.approx(2.5)
    assert lines["ours"].prompt_tokens_per_second == pytest.approx(40.0)
    assert [line.same_texts for line in lines.values()] == [2, 1, 3]


def test_without_the_peers_the_last_is_the_baseline() -> None:
    ours, other = contender("ours", ([1, 2], 1.0)), contender("other", ([1, 2], 2.0))
    first, last = report([ours, other], [[1]])
    assert (first.of_baseline, last.of_baseline) == pytest.approx((2.0, 1.0))
    assert first.same_texts is None
