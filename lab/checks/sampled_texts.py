"""One text: a request has the same sampled tokens however it is decoded."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from eagle_aot.artifact import NGRAM
from eagle_aot.common.prompts import Prompt
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine import Finished, Tokens
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams

PARAMETERS = (
    *(GenerationParams(temperature=temperature) for temperature in (0.3, 0.7, 1.0, 1.5, 4.0)),
    GenerationParams(temperature=1.0, top_p=0.9),
    GenerationParams(temperature=1.0, top_k=40),
    GenerationParams(temperature=1.0, min_p=0.05),
    GenerationParams(
        temperature=1.5, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2,
        min_tokens=8, top_k=200, top_p=0.98,
    ),
)  # fmt: skip
CHAINS = 1, 4, 7
TREES = Shape(6, 8, 32), Shape(4, 3, 10), Shape(3, 2, 6)
ARRIVAL = 0.3  # the chance that a request arrives before a step
SHOWN = 3  # differences of each way of decoding


@dataclass(frozen=True, slots=True)
class SampledText:
    """A request and its plain output."""

    prompt: Prompt
    parameters: GenerationParams
    tokens: list[int]


@dataclass(slots=True)
class SameTexts:
    """How many texts of one way of decoding differ from the plain ones, and `differing` requests.

    `tokens` and `rounds` are of all texts.
    """

    texts: int = 0
    tokens: int = 0
    rounds: int = 0
    differing: list[GenerationParams] = field(default_factory=list)

    def add(self, text: SampledText, tokens: Sequence[int], rounds: int) -> None:
        """Count one text."""
        self.texts += 1
        self.tokens += len(tokens)
        self.rounds += rounds
        if text.tokens != list(tokens):
            self.differing.append(text.parameters)

    def __str__(self) -> str:
        tau = self.tokens / self.rounds if self.rounds else 0.0
        return f"{len(self.differing)} of {self.texts} texts differ, {tau:.2f} tokens a round"


def sampled_requests(
    prompts: Sequence[Prompt], seeds: int, max_new_tokens: int
) -> Iterator[tuple[Prompt, GenerationParams]]:
    """Yield each prompt with `seeds` seeds, and with all parameters in turn."""
    for seed in range(len(prompts) * seeds):
        parameters = PARAMETERS[seed % len(PARAMETERS)]
        yield (
            prompts[seed % len(prompts)],
            replace(parameters, seed=seed, max_new_tokens=max_new_tokens),
        )


def decode_plainly(
    runner: Runner, requests: Sequence[tuple[Prompt, GenerationParams]]
) -> list[SampledText]:
    """Answer every request alone and without drafts."""
    texts = []
    for prompt, parameters in requests:
        result = runner.answer(prompt, replace(parameters, speculate=False))
        texts.append(SampledText(prompt, parameters, result.token_ids))
    return texts


def compare_everywhere(
    artifact: Path, runner: Runner, texts: Sequence[SampledText]
) -> dict[str, SameTexts]:
    """Decode the texts in every way: alone, in a batch, in another process, by prompt lookup."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        elsewhere = pool.submit(compare_opened, artifact, None, texts).result()
    return {
        **compare_alone(runner, texts),
        "in a batch": compare_in_batch(runner, texts),
        "in another process": elsewhere,
        "by prompt lookup": compare_opened(artifact, NGRAM, texts),
    }


def draft_shapes(runner: Runner) -> dict[str, dict[str, Any]]:
    """Map a name to the parameters of each chain and tree."""
    shapes: dict[str, dict[str, Any]] = {f"K = {k}": {"chain_len": k} for k in CHAINS}
    if runner.grows_trees:
        shapes |= {f"tree {shape}": {"tree": shape} for shape in TREES}
    return shapes


def compare_alone(runner: Runner, texts: Sequence[SampledText]) -> dict[str, SameTexts]:
    """Decode every text alone, with every chain and tree."""
    counts = {name: SameTexts() for name in draft_shapes(runner)}
    for text in texts:
        for name, shape in draft_shapes(runner).items():
            result = runner.answer(text.prompt, replace(text.parameters, **shape))
            counts[name].add(text, result.token_ids, result.stats.rounds)
    return counts


def compare_opened(artifact: Path, drafter: str | None, texts: Sequence[SampledText]) -> SameTexts:
    """Open the artifact again, with caches of its own, and decode every text alone."""
    runner, count = load_artifact(artifact, drafter=drafter), SameTexts()
    for text in texts:
        result = runner.answer(text.prompt, text.parameters)
        count.add(text, result.token_ids, result.stats.rounds)
    return count


def compare_in_batch(runner: Runner, texts: Sequence[SampledText]) -> SameTexts:
    """Decode as many texts in parallel as there are caches; they arrive at random, in any shape."""
    rng, count = random.Random(1), SameTexts()
    shapes = [{"speculate": False}, *draft_shapes(runner).values()]
    waiting, running = list(texts), dict[int, tuple[SampledText, list[int]]]()
    while waiting or running:
        has_slot = len(running) < len(runner.batch)
        if waiting and has_slot and (not running or rng.random() < ARRIVAL):
            text = waiting.pop(rng.randrange(len(waiting)))
            parameters = replace(text.parameters, **rng.choice(shapes), reuse=True)
            number = runner.engine.add(runner.request(text.prompt, parameters))
            running[number] = text, []
        for event in runner.engine.step():
            text, tokens = running[event.request]
            if isinstance(event, Tokens):
                tokens += event.tokens
                continue
            del running[event.request]
            rounds = event.stats.rounds if isinstance(event, Finished) else 0
            count.add(text, tokens, rounds)
    return count
