"""One text: the same tokens however they are decoded, counted."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

from eagle_aot.artifact import NGRAM
from eagle_aot.common.prompts import Prompt
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine import Finished, Tokens
from eagle_aot.runtime_runner.parameters import GenerationParams

TEMPERATURES = 0.3, 0.7, 1.0, 1.5, 4.0
OTHERS = (
    GenerationParams(temperature=1.0, top_p=0.9),
    GenerationParams(temperature=1.0, top_k=40),
    GenerationParams(temperature=1.0, min_p=0.05),
    GenerationParams(
        temperature=1.5, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2,
        min_tokens=8, top_k=200, top_p=0.98,
    ),
)  # fmt: skip
PARAMETERS = (*(GenerationParams(temperature=t) for t in TEMPERATURES), *OTHERS)
CHAINS = 1, 4, 7
TREES = Shape(6, 8, 32), Shape(4, 3, 10), Shape(3, 2, 6)
ARRIVES = 0.3
"""The chance of a step that a request comes before."""


@dataclass(slots=True)
class Tally:
    """What a way of decoding came to: texts, those that differ from the plain ones, and tokens and
    rounds, of which there are as many in plain decoding."""

    texts: int = 0
    different: int = 0
    tokens: int = 0
    rounds: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, plain: Sequence[int], found: Sequence[int], rounds: int, what: str) -> None:
        """One text."""
        self.texts += 1
        self.tokens += len(found)
        self.rounds += rounds
        if list(plain) != list(found):
            self.different += 1
            self.first.append(what)

    def __str__(self) -> str:
        per_round = self.tokens / self.rounds if self.rounds else 0.0
        return f"{self.different} of {self.texts} texts differ, {per_round:.2f} tokens a round"


def asked_of(prompts: Sequence[Prompt], seeds: int, longest: int) -> Iterator[GenerationParams]:
    """For each prompt in turn, with each seed: parameters, all of them in turn."""
    for number in range(len(prompts) * seeds):
        how = PARAMETERS[number % len(PARAMETERS)]
        yield replace(how, seed=number, max_new_tokens=longest)


def ways(runner: Runner) -> dict[str, dict[str, object]]:
    """How one text is decoded, beside plainly."""
    found: dict[str, dict[str, object]] = {f"K = {k}": {"chain_len": k} for k in CHAINS}
    if runner.drafter.grows_trees:
        found |= {f"tree {shape}": {"tree": shape} for shape in TREES}
    return found


def one_by_one(
    runner: Runner,
    prompts: Sequence[Prompt],
    asked: Sequence[GenerationParams],
    plain: list[list[int]],
) -> dict[str, Tally]:
    """Each way with every prompt alone; `plain` is filled."""
    tallies = {name: Tally() for name in ways(runner)}
    for number, one in enumerate(asked):
        prompt = prompts[number % len(prompts)]
        text = runner.answer(prompt, replace(one, speculate=False)).token_ids
        plain.append(text)
        for name, how in ways(runner).items():
            result = runner.answer(prompt, replace(one, **how))  # type: ignore[arg-type]
            tallies[name].add(text, result.token_ids, result.stats.rounds, f"{name}: {one}")
    return tallies


def elsewhere(
    artifact: Path,
    prompts: Sequence[Prompt],
    asked: Sequence[GenerationParams],
    plain: Sequence[Sequence[int]],
) -> Tally:
    """In a process of its own, with the drafts that the artifact proposes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(compared, "elsewhere", artifact, None, prompts, asked, plain).result()


def by_lookup(
    artifact: Path,
    prompts: Sequence[Prompt],
    asked: Sequence[GenerationParams],
    plain: Sequence[Sequence[int]],
) -> Tally:
    """With drafts by prompt lookup, and caches of its own."""
    return compared("lookup", artifact, NGRAM, prompts, asked, plain)


def compared(
    name: str,
    artifact: Path,
    drafter: str | None,
    prompts: Sequence[Prompt],
    asked: Sequence[GenerationParams],
    plain: Sequence[Sequence[int]],
) -> Tally:
    """The artifact opened once more, and each text by itself."""
    runner, tally = load_artifact(artifact, drafter=drafter), Tally()
    for number, (one, text) in enumerate(zip(asked, plain, strict=True)):
        result = runner.answer(prompts[number % len(prompts)], one)
        tally.add(text, result.token_ids, result.stats.rounds, f"{name}: {one}")
    return tally


def together(
    runner: Runner,
    prompts: Sequence[Prompt],
    asked: Sequence[GenerationParams],
    plain: Sequence[Sequence[int]],
) -> Tally:
    """As many at once as there are caches for, which come at random and draft in any way."""
    rng, tally = random.Random(1), Tally()
    hows = [{"speculate": False}, *ways(runner).values()]
    coming, going = list(range(len(asked))), dict[int, int]()
    texts: dict[int, list[int]] = {}
    while coming or going:
        busy = bool(going)
        if coming and len(going) < len(runner.running) and (not busy or rng.random() < ARRIVES):
            number = coming.pop(rng.randrange(len(coming)))
            how = replace(asked[number], **rng.choice(hows), reuse=True)  # type: ignore[arg-type]
            request = runner.request(prompts[number % len(prompts)], how)
            going[runner.engine.add(request)], texts[number] = number, []
        for event in runner.engine.step():
            number = going[event.request]
            if isinstance(event, Tokens):
                texts[number] += event.tokens
                continue
            del going[event.request]
            rounds = event.stats.rounds if isinstance(event, Finished) else 0
            tally.add(plain[number], texts[number], rounds, f"together: {asked[number]}")
    return tally
