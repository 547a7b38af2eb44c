"""One text: an answer of a given form has the same tokens however it is decoded, and has the form.

\b
    eagle-export --target-model gemma4-tiny --max-batch-size 4 --output-dir tiny
    python scripts/write_prompts.py prompts.jsonl
    python -m eagle_aot.lab.checks.constraints tiny prompts.jsonl --count 50 --jobs 12

Each prompt is continued in each form, greedily and sampled, by plain decoding; then by chains and
trees, by prompt lookup, with and without reused prefixes, and in batches of four with two
neighbours without a form. Answers that end by themselves are judged by jsonschema, which the `test`
extra installs, and those that are cut must begin as an answer does: jiter reads cut JSON.
"""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
import torch

from eagle_aot.artifact import NGRAM
from eagle_aot.common.prompts import Prompt, read_prompts
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.checks.forms import FORMS, has_form
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.prompts import spread
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.frontend.generation import Result, generate_in_order
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams

SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95}
DRAFTS: dict[str, dict[str, Any]] = {
    "chain 1": {"chain_len": 1}, "chain 4": {"chain_len": 4}, "chain 7": {"chain_len": 7},
    "tree 4,4,16": {"tree": (4, 4, 16)}, "tree 6,3,31": {"tree": (6, 3, 31)},
    "reuse": {"chain_len": 4, "reuse": True},
}  # fmt: skip
FREE: list[dict[str, Any]] = [{"chain_len": 4}, {"tree": (4, 4, 16)}]
"""Neighbours without a form."""
REUSED = False, False, True, True
"""Which answers of batches reuse prefixes: each shape does and does not."""


class ConstraintsSpec(msgspec.Struct, kw_only=True, frozen=True):
    """What to compare."""

    artifact: Path
    prompts_jsonl: Path
    count: Annotated[int, Option("Prompts.", least=1)] = 300
    max_new_tokens: Annotated[int, Option("Tokens of each answer.", least=2)] = 64
    jobs: Annotated[
        int, Option("Processes that share the prompts; several have one thread each.", least=1)
    ] = 1


@dataclass(slots=True)
class Compared:
    """Answers of one way of decoding, and those that differ.

    `cached` are tokens of prompts that were not run again.
    """

    texts: int = 0
    tokens: int = 0
    rounds: int = 0
    cached: int = 0
    seconds: float = 0.0
    differing: list[str] = field(default_factory=list)

    def add(self, other: "Compared") -> None:
        """Count the answers of another process, too."""
        for name in ("texts", "tokens", "rounds", "cached", "seconds", "differing"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        tau = self.tokens / self.rounds if self.rounds else 0.0
        return (
            f"{len(self.differing)} of {self.texts} differ, tau {tau:.2f}, "
            f"{self.tokens / self.seconds:.0f} tokens/s, {self.cached} cached"
        )


@dataclass(slots=True)
class FormAnswers:
    """Answers of one form: by the way of decoding, the plain one first; how many plain ones end by
    themselves, and those that do not have the form or, where they are cut, do not begin it."""

    ways: dict[str, Compared] = field(default_factory=dict)
    ended: int = 0
    invalid: list[str] = field(default_factory=list)

    def add(self, other: "FormAnswers") -> None:
        """Count the answers of another process, too."""
        for way, compared in other.ways.items():
            self.ways.setdefault(way, Compared()).add(compared)
        self.ended += other.ended
        self.invalid += other.invalid


@spec_command(ConstraintsSpec)
def main(spec: ConstraintsSpec) -> None:
    """Compare answers of given forms of ARTIFACT with those of plain decoding."""
    prompts = spread(read_prompts(None, None, spec.prompts_jsonl), spec.count)
    click.echo("\n".join(title_lines(header(f"forms of answers of {spec.artifact.name}", None))))
    total, started = Counter[str](), time.perf_counter()
    for kind, answers in all_answers(spec, prompts):
        click.echo(f"{kind}: {answers.ended} of {len(prompts)} end by themselves")
        for way, compared in answers.ways.items():
            click.echo(f"  {way:<12} {compared}")
            click.echo("".join(f"    {text}\n" for text in compared.differing[:3]), nl=False)
            total.update(texts=compared.texts, differ=len(compared.differing))
        click.echo("".join(f"  invalid: {text}\n" for text in answers.invalid[:3]), nl=False)
        total.update(invalid=len(answers.invalid))
    wrong, seconds = total["differ"] + total["invalid"], time.perf_counter() - started
    click.echo(
        f"{total['differ']} of {total['texts']} texts differ, {total['invalid']} are invalid; "
        f"{seconds:.0f} s"
    )
    sys.exit(bool(wrong))


def all_answers(
    spec: ConstraintsSpec, prompts: Sequence[Prompt]
) -> Iterator[tuple[str, FormAnswers]]:
    """Yield the answers of each form, greedy and sampled, of all processes together."""
    kinds = [(form, sampled) for form in FORMS for sampled in (False, True)]
    names = [f"{form}, {'sampled' if sampled else 'greedy'}" for form, sampled in kinds]
    numbered = list(enumerate(prompts))
    if spec.jobs == 1:
        yield from zip(names, (compare(spec, *kind, numbered) for kind in kinds), strict=True)
        return
    shards = [shard for job in range(spec.jobs) if (shard := numbered[job :: spec.jobs])]
    spawn = get_context("spawn")
    with ProcessPoolExecutor(spec.jobs, mp_context=spawn, initializer=use_one_thread) as pool:
        futures = [[pool.submit(compare, spec, *kind, s) for s in shards] for kind in kinds]
        for name, parts in zip(names, futures, strict=True):
            answers = FormAnswers()
            for part in parts:
                answers.add(part.result())
            yield name, answers


def use_one_thread() -> None:
    """Compute in one thread: ExecuTorch would take one for each core of the machine."""
    from executorch.extension.pybindings import _C  # absent on machines for CUDA

    torch.set_num_threads(1)
    _C._unsafe_reset_threadpool(1)


@cache
def opened(artifact: Path, drafter: str | None = None) -> Runner:
    """Return a process's runner."""
    return load_artifact(artifact, drafter=drafter)


def compare(
    spec: ConstraintsSpec, form: str, sampled: bool, prompts: Sequence[tuple[int, Prompt]]
) -> FormAnswers:
    """Answer prompts in all ways; each has a number, which is the seed of its answers."""
    answers, structure, runner = FormAnswers(), FORMS[form], opened(spec.artifact)
    ways = answers.ways
    params = [
        GenerationParams(
            max_new_tokens=spec.max_new_tokens,
            **structure,
            **(SAMPLED | {"seed": number} if sampled else {}),
        )
        for number, _ in prompts
    ]
    plain = [
        timed(ways, "plain", runner, prompt, msgspec.structs.replace(each, speculate=False))
        for (_, prompt), each in zip(prompts, params, strict=True)
    ]
    for (_, prompt), each, expected in zip(prompts, params, plain, strict=True):
        for way, drafts in DRAFTS.items():
            drafted = msgspec.structs.replace(each, **drafts)
            timed(ways, way, runner, prompt, drafted, expected.token_ids)
        ngram = opened(spec.artifact, NGRAM)
        timed(ways, NGRAM, ngram, prompt, each, expected.token_ids)
    batches(ways, runner, [prompt for _, prompt in prompts], params, plain)
    answers.ended = sum(result.finish_reason == "stop" for result in plain)
    answers.invalid = list(invalid(structure, plain))
    return answers


def timed(
    ways: dict[str, Compared],
    way: str,
    runner: Runner,
    prompt: Prompt,
    params: GenerationParams,
    expected: list[int] | None = None,
) -> Result:
    """Generate an answer, and add it to its way of decoding."""
    started = time.perf_counter()
    result = runner.answer(prompt, params)
    compared = ways.setdefault(way, Compared())
    compared.seconds += time.perf_counter() - started
    add(compared, result, expected)
    return result


def add(compared: Compared, result: Result, expected: list[int] | None) -> None:
    """Count an answer, and compare its tokens."""
    compared.texts += 1
    compared.tokens += result.stats.emitted
    compared.rounds += result.stats.rounds
    compared.cached += result.cached_tokens
    if expected is not None and result.token_ids != expected:
        compared.differing.append(f"{result.text!r} is {expected}")


def batches(
    ways: dict[str, Compared],
    runner: Runner,
    prompts: Sequence[Prompt],
    params: list[GenerationParams],
    plain: list[Result],
) -> None:
    """Generate all answers in batches of four, every second one of a neighbour without a form."""
    compared, started = ways.setdefault("batch of 4", Compared()), time.perf_counter()
    free = itertools.cycle(GenerationParams(max_new_tokens=40, **drafts) for drafts in FREE)
    shapes, reused = itertools.cycle(DRAFTS.values()), itertools.cycle(REUSED)

    def requests() -> Iterator[tuple[Prompt, GenerationParams]]:
        for prompt, each in zip(prompts, params, strict=True):
            drafts = next(shapes) | {"reuse": next(reused)}
            yield prompt, msgspec.structs.replace(each, **drafts)
            yield prompt, next(free)

    generations = (runner.generation(prompt, each) for prompt, each in requests())
    size = min(4, runner.constants.max_batch_size)
    results = list(generate_in_order(runner.engine, generations, size))
    compared.seconds += time.perf_counter() - started
    for result, expected in zip(results[::2], plain, strict=True):
        assert isinstance(result, Result), result
        add(compared, result, expected.token_ids)


def invalid(structure: dict[str, Any], results: Iterable[Result]) -> Iterator[str]:
    """Yield the texts of results that do not have a form, or begin none where they are cut."""
    for result in results:
        text, is_cut = result.text or "", result.finish_reason != "stop"
        if not has_form(structure, text, is_cut):
            yield f"{text!r} ({result.finish_reason})"


if __name__ == "__main__":
    main()
