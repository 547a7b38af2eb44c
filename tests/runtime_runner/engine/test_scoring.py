"""Requests for the log probabilities of their prompts, over a toy model: alone and with others."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from eagle_aot.common.errors import PromptError
from eagle_aot.lab.invariants import check_all
from eagle_aot.runtime_runner.engine import Engine, Request
from eagle_aot.runtime_runner.images.prompt_image import PlacedImage, PromptImage
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from support.runner.engines import ObservedTarget, Requests, request_of, rounds_over, schedule_over
from support.runner.sampled import prompt_logprobs
from support.runner.toy import SeeingDrafter, plain_text

SEED, LENGTH, MOST = 11, 8, 3
LONG = [3, 1, 4, 1, 5, 9, 2, 6] * 25
"""A prompt of four windows, and seven chunks."""


class ScoredRequests(Requests):
    """Requests whose engine is checked after each step."""

    def __init__(self, sequences: int = 2) -> None:
        self.target = ObservedTarget(SEED, 32, sequences)
        drafter = SeeingDrafter(self.target, [True, False])
        super().__init__(Engine(schedule_over(rounds_over(self.target, drafter))))
        self.engine.sequence_pool.copy_least = 1

    def add_prompt(
        self, prompt: Sequence[int], length: int = LENGTH, most: int | None = MOST
    ) -> int:
        return self.add(scoring(prompt, length, most))

    def step(self) -> None:
        super().step()
        rows = self.target.rows
        check_all(self.engine)
        self.target.rows = rows


def scoring(prompt: Sequence[int], length: int = LENGTH, most: int | None = MOST) -> Request:
    return request_of(prompt, length, 4, reuse=True, sampling=SamplingParams(prompt_logprobs=most))


def check(scored: Sequence[TokenLogprobs], prompt: Sequence[int]) -> None:
    """Compare with plain numbers."""
    expected = prompt_logprobs(prompt, SEED, MOST)
    assert [(token.id, [number for number, _ in token.top]) for token in scored] == [
        (token, [likely for likely, _ in top]) for token, _, top in expected
    ]
    assert scored[0].logprob is None
    logprobs = [token.logprob for token in scored[1:]]
    assert logprobs == pytest.approx([logprob for _, logprob, _ in expected[1:]], abs=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 64, 65, 66, 129])
def test_windows_of_any_size_give_the_same_log_probabilities(rows: int, length: int) -> None:
    """In the least number of forwards."""
    requests, prompt = ScoredRequests(), LONG[:length]
    requests.target.max_rows = rows
    number = requests.add_prompt(prompt, 0)
    requests.finish()
    check(requests.scored[number], prompt)
    end = requests.ends[number]
    assert (end.reason, end.reused, requests.tokens[number]) == ("length", 0, [])
    assert end.stats.target_forwards == requests.target.forwards == -(-(length - 1) // rows)


def test_no_rows_are_reused_while_a_prompt_is_scored() -> None:
    """Neither its own nor by it, and it evicts none for that; afterwards both are."""
    requests = ScoredRequests(3)
    first = requests.add_prompt(LONG, most=None)
    requests.finish()
    scored = requests.add_prompt(LONG)
    requests.step()
    (text,) = requests.engine.prefilling
    assert text.scoring is not None and text.sequence != requests.engine.sequence_pool.free[-1]
    other = requests.add_prompt([*LONG, 1], most=None)
    while text.scoring is not None:
        assert text.sequence is not None
        assert (text.rows, requests.engine.sequence_pool.cached(text.sequence).rows) == (0, 0)
        requests.step()
    requests.finish()
    assert [requests.reused[n] for n in (first, scored, other)] == [0, len(LONG) - 1, len(LONG) - 1]
    assert requests.target.rows == len(LONG) + 1 + 2
    check(requests.scored[scored], LONG)
    assert requests.tokens[scored] == requests.tokens[first] == plain_text(LONG, SEED, LENGTH)
    assert requests.tokens[other] == plain_text([*LONG, 1], SEED, LENGTH)


@pytest.mark.parametrize("steps", range(1, 10))
def test_rows_of_scoring_that_is_cancelled_are_not_reused(steps: int) -> None:
    requests = ScoredRequests(1)
    number = requests.add_prompt(LONG)
    for _ in range(steps):
        requests.step()
    requests.engine.cancel(number)
    again = requests.add_prompt(LONG)
    requests.finish()
    assert requests.ends[number].reason == "cancelled"
    assert len(requests.scored[number]) == min(64 * steps + 1, len(LONG))
    assert requests.reused[again] == 0, "it was scored again, from the beginning"
    check(requests.scored[again], LONG)
    after = requests.add_prompt([*LONG, 7], most=None)
    requests.finish()
    assert requests.tokens[after] == plain_text([*LONG, 7], SEED, LENGTH)
    assert requests.tokens[again] == plain_text(LONG, SEED, LENGTH)


def test_a_window_that_fails_ends_its_text_alone() -> None:
    requests = ScoredRequests(2)
    other = requests.add_prompt([1, 2], 40, None)
    requests.target.window_fails_at = 64
    failing = requests.add_prompt(LONG)
    requests.finish()
    assert [*requests.failed] == [failing] and requests.failed[failing].error == "a kernel failed"
    assert requests.tokens[other] == plain_text([1, 2], SEED, 40)
    assert len(requests.scored[failing]) == 65 and requests.tokens[failing] == []
    requests.target.window_fails_at = None
    again = requests.add_prompt(LONG)
    requests.finish()
    check(requests.scored[again], LONG)
    assert requests.tokens[again] == plain_text(LONG, SEED, LENGTH)


def test_running_texts_continue_between_windows() -> None:
    requests = ScoredRequests(2)
    first = requests.add_prompt([1], 200, None)
    requests.step()
    long = requests.add_prompt(LONG * 3)
    at_windows = []
    while not requests.tokens[long]:
        before = requests.target.windows
        requests.step()
        at_windows += [len(requests.tokens[first])] * (requests.target.windows - before)
    assert len(at_windows) == 10, "600 tokens"
    assert at_windows[-1] > at_windows[0] + 4


def test_a_prompt_without_scoring_runs_no_windows() -> None:
    requests = ScoredRequests()
    number = requests.add_prompt(LONG, most=None)
    requests.finish()
    assert (requests.target.windows, requests.scored[number]) == (0, [])


def test_a_prompt_with_images_has_no_logprobs() -> None:
    image = PlacedImage(PromptImage.of_rows(torch.ones(2, 4), 4), 1)
    request = scoring([1])
    with pytest.raises(
        PromptError, match="prompt_logprobs is not supported with images: leave it out"
    ) as refused:
        replace(request, prompt=(1, 2, 2), images=(image,))
    assert "\n" not in str(refused.value)
