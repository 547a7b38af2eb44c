"""Requests, and what each answers alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track

from eagle_aot.common.prompts import read_prompts
from eagle_aot.runtime_runner import load_artifact
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.result import Result

HEATS = 0.0, 0.7, 1.0
MOST_LOGPROBS = None, None, None, None, 2
"""Of so many likeliest tokens every fifth request asks for log probabilities."""


class Answer(NamedTuple):
    """A text, how many tokens it cost, and the log probabilities of those that it shows, none
    where nobody asked for them."""

    text: str
    tokens: int
    logprobs: list[float | None]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and what it answers alone."""

    prompt: str
    parameters: GenerationParams
    alone: Answer


def asked_of(artifact: Path, path: Path, count: int, longest: int) -> list[Asked]:
    """The first so many prompts that are text, each with a seed of its own."""
    runner = load_artifact(artifact)
    texts = [prompt for prompt in read_prompts(None, None, path) if isinstance(prompt, str)]
    asked = []
    shown = track(texts[:count], "alone", console=Console(stderr=True), transient=True)
    for seed, prompt in enumerate(shown):
        parameters = GenerationParams(
            temperature=HEATS[seed % len(HEATS)],
            logprobs=MOST_LOGPROBS[seed % len(MOST_LOGPROBS)],
            seed=seed,
            max_new_tokens=longest,
        )
        asked.append(Asked(prompt, parameters, answered(runner.answer(prompt, parameters))))
    return asked


def answered(result: Result) -> Answer:
    """As a chat tells it: the id that ended a text is none of it."""
    told = [one.logprob for one in result.logprobs or ()]
    shown = told[:-1] if result.finish_reason == "stop" else told
    return Answer(result.text or "", len(result.token_ids), shown)
