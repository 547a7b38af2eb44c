"""One text: an answer of a given form has the same tokens however it is decoded, and has the form.

\b
    eagle-export --target-model gemma4-tiny --max-batch-size 4 --output-dir tiny
    python scripts/write_prompts.py prompts.jsonl
    python -m eagle_aot.lab.checks.constraints tiny prompts.jsonl --count 50

Each prompt is continued in each form, greedily and sampled, by plain decoding; then by chains and
trees, by prompt lookup, with and without reused prefixes, and in batches of four with two
neighbours without a form. Schemas are judged by jsonschema, which the `test` extra installs.
"""

import itertools
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from eagle_aot.artifact import NGRAM
from eagle_aot.common.prompts import Prompt, read_prompts
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.prompts import spread
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.frontend.generation import Result, generate_in_order
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams

NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
NESTED = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["red", "blé", "日本"]}, "maxItems": 2},
        "size": {
            "type": "object",
            "properties": {"n": NUMBER, "x": {"type": "number"}},
            "required": ["n", "x"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}
RECURSIVE = {
    "type": "object",
    "properties": {"v": NUMBER, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["v", "next"],
    "additionalProperties": False,
}
ANSWER = {
    "type": "object",
    "properties": {"why": {"type": "string"}, "answer": {"type": "integer"}},
    "required": ["why", "answer"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "nested": {"json_schema": NESTED},
    "recursive": {"json_schema": RECURSIVE},
    "answer": {"json_schema": ANSWER},
    "regex": {"regex": r"(yes|no), [A-Z][a-zé]{1,6} has [0-9]{1,3}\."},
    "grammar": {"grammar": 'start: item (", " item)~1..3\nitem: /[0-9]{1,3}/ " + " /[0-9]{1,3}/'},
    "choices": {"choices": ("Paris", "Par", "London is large", "12 marbles", "12")},
}
SUMS = re.compile(r"\d{1,3} \+ \d{1,3}(, \d{1,3} \+ \d{1,3}){1,3}")
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95}
DRAFTS: dict[str, dict[str, Any]] = {
    "chain 1": {"chain_len": 1}, "chain 4": {"chain_len": 4}, "chain 7": {"chain_len": 7},
    "tree 4,4,16": {"tree": (4, 4, 16)}, "tree 6,3,31": {"tree": (6, 3, 31)},
    "reuse": {"chain_len": 4, "reuse": True},
}  # fmt: skip
FREE: list[dict[str, Any]] = [{"chain_len": 4}, {"tree": (4, 4, 16)}]
"""Neighbours without a form."""


class ConstraintsSpec(msgspec.Struct, kw_only=True, frozen=True):
    """What to compare."""

    artifact: Path
    prompts_jsonl: Path
    count: Annotated[int, Option("Prompts.", least=1)] = 300
    max_new_tokens: Annotated[int, Option("Tokens of each answer.", least=2)] = 64


@dataclass(slots=True)
class Compared:
    """Answers of one way of decoding, and those that differ."""

    texts: int = 0
    tokens: int = 0
    rounds: int = 0
    seconds: float = 0.0
    differing: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        tau = self.tokens / self.rounds if self.rounds else 0.0
        return (
            f"{len(self.differing)} of {self.texts} differ, tau {tau:.2f}, "
            f"{self.tokens / self.seconds:.0f} tokens/s"
        )


@spec_command(ConstraintsSpec)
def main(spec: ConstraintsSpec) -> None:
    """Compare answers of given forms of ARTIFACT with those of plain decoding."""
    runner = load_artifact(spec.artifact)
    ngram = load_artifact(spec.artifact, drafter=NGRAM)
    prompts = spread(read_prompts(None, None, spec.prompts_jsonl), spec.count)
    click.echo("\n".join(title_lines(header(f"forms of answers of {spec.artifact.name}", None))))
    texts = wrong = 0
    for (form, structure), sampled in itertools.product(FORMS.items(), (False, True)):
        ways, ended = compare(runner, ngram, prompts, structure, sampled, spec.max_new_tokens)
        kind = "sampled" if sampled else "greedy"
        click.echo(f"{form}, {kind}: {ended} of {len(prompts)} end by themselves and have the form")
        for way, compared in ways.items():
            click.echo(f"  {way:<12} {compared}")
            click.echo("".join(f"    {text}\n" for text in compared.differing[:3]), nl=False)
            texts, wrong = texts + compared.texts, wrong + len(compared.differing)
    click.echo(f"{wrong} of {texts} texts differ")
    sys.exit(bool(wrong))


def compare(
    runner: Runner,
    ngram: Runner,
    prompts: Sequence[Prompt],
    structure: dict[str, Any],
    sampled: bool,
    max_new_tokens: int,
) -> tuple[dict[str, Compared], int]:
    """Return all ways of decoding, the plain one first, and how many answers end by themselves.

    Raises AssertionError for one that does not have its form.
    """
    ways: dict[str, Compared] = {}
    params = [
        GenerationParams(
            max_new_tokens=max_new_tokens,
            **structure,
            **(SAMPLED | {"seed": seed} if sampled else {}),
        )
        for seed in range(len(prompts))
    ]
    plain = [
        timed(ways, "plain", runner, prompt, msgspec.structs.replace(each, speculate=False))
        for prompt, each in zip(prompts, params, strict=True)
    ]
    for prompt, each, expected in zip(prompts, params, plain, strict=True):
        for way, drafts in DRAFTS.items():
            drafted = msgspec.structs.replace(each, **drafts)
            timed(ways, way, runner, prompt, drafted, expected.token_ids)
        timed(ways, NGRAM, ngram, prompt, each, expected.token_ids)
    batches(ways, runner, prompts, params, plain)
    ended = [result for result in plain if result.finish_reason == "stop"]
    for result in ended:
        assert has_form(structure, result.text or ""), result.text
    return ways, len(ended)


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
    shapes = itertools.cycle(DRAFTS.values())

    def requests() -> Iterator[tuple[Prompt, GenerationParams]]:
        for prompt, each in zip(prompts, params, strict=True):
            yield prompt, msgspec.structs.replace(each, **next(shapes))
            yield prompt, next(free)

    generations = (runner.generation(prompt, each) for prompt, each in requests())
    size = min(4, runner.constants.max_batch_size)
    results = list(generate_in_order(runner.engine, generations, size))
    compared.seconds += time.perf_counter() - started
    for result, expected in zip(results[::2], plain, strict=True):
        assert isinstance(result, Result), result
        add(compared, result, expected.token_ids)


def has_form(structure: dict[str, Any], text: str) -> bool:
    """Return whether a text has the form, by other means than those that held it to the form."""
    import jsonschema

    if "json_schema" in structure:
        jsonschema.validate(json.loads(text), structure["json_schema"])
        return True
    if "choices" in structure:
        return text in structure["choices"]
    return bool(re.fullmatch(structure.get("regex", SUMS), text))


if __name__ == "__main__":
    main()
