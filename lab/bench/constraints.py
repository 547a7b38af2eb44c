"""`eagle-bench --part constraints`: what holding answers to a form costs a round.

Whole rounds over random text, each restarted at the same context, in turn: greedy ones, ones with a
logits processor, and ones with constraints, after a few rounds of the same requests. Any text may
follow in the form "text", so all rows have masks, and no draft is replaced; "schema" forbids most
drafts. Where the host still finds some to replace, as in trees, the target waits for it in every
round. An artifact of random weights has no tokenizer: its tokens are then made-up words, as many as
it has ids.
"""

import random
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import tokenizers
from rich.table import Table
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from eagle_aot.common.progress import Progress
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.common.tokenizer import VOCABULARY
from eagle_aot.lab.bench.parts import WholeRound
from eagle_aot.lab.bench.prefill import fill_all
from eagle_aot.lab.bench.spec import BenchSpec, check_range, milliseconds, table_of
from eagle_aot.lab.bench.timing import Clock, Series, clock_for, time_on_host
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.sampling.constraint import Constraint, GrammarCompiler
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from eagle_aot.runtime_runner.sampling.token_masks import CALM

TEXT = SamplingParams(regex="(?s).{1,100000}")
SCHEMA = SamplingParams(
    json_schema={
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
            "size": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
        "required": ["name", "tags", "size"],
    }
)
KINDS = {
    "greedy": GREEDY,
    "processor": SamplingParams(repetition_penalty=1.1),
    "text": TEXT,
    "schema": SCHEMA,
}
SHAPES = (
    (1, Shape.chain(4)), (1, Shape.chain(7)), (1, Shape(6, 8, 31)), (1, Shape(7, 8, 63)),
    (8, Shape.chain(4)), (8, Shape.chain(7)),
)  # fmt: skip
"""Requests and drafts of the rounds: of 5, 8, 32, 64, 40 and 64 rows."""


class ConstraintsBenchSpec(BenchSpec, kw_only=True, frozen=True):
    """What to measure."""

    context: Annotated[int, Option("Tokens in each request's caches.", least=1)] = 1024
    repeats: Annotated[int, Option("Samples per figure, whose median counts.", least=1)] = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstraintTimes:
    """The milliseconds of a round of `requests` with `drafts` each, until the host has its tokens,
    without a constraint and with one."""

    requests: int
    drafts: str
    rows: int
    greedy_ms: float
    processor_ms: float
    text_ms: float
    schema_ms: float


@spec_command(ConstraintsBenchSpec)
def main(spec: ConstraintsBenchSpec) -> None:
    """Time rounds of ARTIFACT with and without constraints."""
    runner = spec.load()
    check_range("--context", [spec.context], runner.constants.max_seq_len - runner.constants.tail)
    lines = list(measure(runner, spec))
    results = {"context": spec.context, "lines": [asdict(line) for line in lines]}
    spec.show(f"constraints of {spec.name}", results, table(lines, spec.context))


def measure(runner: Runner, spec: ConstraintsBenchSpec) -> Iterator[ConstraintTimes]:
    """Time the rounds that the artifact has caches and rows for."""
    constants, clock, progress = runner.constants, clock_for(runner.executor.device), Progress()
    shapes = [
        (requests, shape)
        for requests, shape in SHAPES
        if requests <= constants.max_batch_size
        and requests * (shape.nodes + 1) <= constants.max_step_rows
        and (shape.is_chain or runner.drafter.grows_trees)
    ]
    with progress.stage("record"):
        rounds = [
            WholeRound(runner.round(shape, requests), constants.vocab_size, requests)
            for requests, shape in shapes
        ]
    with progress.stage(f"prefill of {spec.context}"):
        fill_all(runner, range(max(requests for requests, _ in shapes)), spec.context)
    for (requests, shape), round_ in zip(shapes, rounds, strict=True):
        with progress.stage(f"{requests} x {shape.label}"):
            round_.place(spec.context)
            ms = time_kinds(runner, clock, round_, requests, spec.repeats)
        rows = requests * (shape.nodes + 1)
        times = {f"{kind}_ms": value for kind, value in ms.items()}
        yield ConstraintTimes(requests=requests, drafts=shape.label, rows=rows, **times)


def time_kinds(
    runner: Runner, clock: Clock, round_: WholeRound, requests: int, repeats: int
) -> dict[str, float]:
    """Return a round's milliseconds by the kind of its requests, sampled in turn."""
    grammars = grammar_compiler(runner)
    constraints = {
        kind: [grammars.compile(*sampling.structure) for _ in range(requests)]
        for kind, sampling in KINDS.items()
        if sampling.structure is not None
    }
    series: dict[str, Series] = {}
    for _ in range(repeats):
        for kind, sampling in KINDS.items():
            with answering(runner.batch.sampler, requests, sampling, constraints.get(kind)):
                if kind not in series:  # records the round
                    series[kind] = Series(clock, round_.timed, time_on_host)
                series[kind].warm_up(CALM)
                series[kind].sample()
    return {kind: samples.ms for kind, samples in series.items()}


def grammar_compiler(runner: Runner) -> GrammarCompiler:
    """Return the compiler for the artifact's tokenizer, or for one of made-up words."""
    path, constants = runner.directory / VOCABULARY, runner.constants
    if path.exists():
        return GrammarCompiler(path, constants.vocab_size, constants.eos_ids)
    with TemporaryDirectory() as directory:
        path = Path(directory) / VOCABULARY
        write_made_up_words(path, constants.vocab_size)
        return GrammarCompiler(path, constants.vocab_size, (0,))


def write_made_up_words(path: Path, count: int) -> None:
    """Write a tokenizer of `count` tokens, the same each time: one that ends a text, all bytes, and
    made-up words of 2 to 12 letters, half of them after a blank."""
    rng, words = random.Random(1), ["<end>", *pre_tokenizers.ByteLevel.alphabet()]
    known = set(words)
    while len(words) < count:
        letters = "".join(rng.choices(string.ascii_letters, k=rng.randint(2, 12)))
        word = rng.choice(("", "Ġ")) + letters  # as byte-level tokenizers write a blank
        if word not in known:
            known.add(word)
            words.append(word)
    vocabulary = {word: token for token, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(words[:1])
    tokenizer.save(str(path))


@contextmanager
def answering(
    sampler: Sampler, requests: int, sampling: SamplingParams, constraints: list[Constraint] | None
) -> Iterator[None]:
    """Begin an answer in each of the first sequences, and end it."""
    for sequence in range(requests):
        constraint = None if constraints is None else constraints[sequence]
        sampler.begin(sequence, sampling, (0,), constraint=constraint)
    try:
        yield
    finally:
        sampler.clear()


def table(lines: Sequence[ConstraintTimes], context: int) -> Table:
    """Return all times, and what constraints add to a greedy round."""
    result = table_of(
        "requests", "drafts", "rows", "greedy ms", "with a\nprocessor", "any text", "schema",
        "any text\nadds", "schema\nadds", title=f"{context:,} tokens of context each",
    )  # fmt: skip
    for line in lines:
        times = line.greedy_ms, line.processor_ms, line.text_ms, line.schema_ms
        added = (f"{ms / line.greedy_ms - 1:.1%}" for ms in times[2:])
        labels = str(line.requests), line.drafts, str(line.rows)
        result.add_row(*labels, *map(milliseconds, times), *added)
    return result
