"""Does speculation change a token? Compare drafted output with plain output, token by token.

Plain decoding is what the target itself says, so any difference is a fault. The first token that
differs is what there is to explain.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from eagle_aot.artifact import tokenizer_files
from eagle_aot.common.prompts import Prompt
from eagle_aot.export import ExportSpec
from eagle_aot.export.loading.locate import locate
from eagle_aot.lab.scripted import ScriptedDrafter
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import AUTO, ChainLen, Shape
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.engine import Engine, Limits, Request
from eagle_aot.runtime_runner.engine.schedule import OneRound
from eagle_aot.runtime_runner.frontend.generation import Generation, generate
from eagle_aot.runtime_runner.runner import Runner
from eagle_aot.targets import TapTarget, load_target

DraftShape = ChainLen | Shape
Decode = Callable[[Runner, list[int], list[int], DraftShape, int], tuple[list[int], Stats]]
"""Decode a prompt, whose plain output is also passed, with a chain or tree and a token limit."""
TargetLogits = Callable[[list[int]], Tensor]
"""The target's logits after some token ids, float32 [V]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Plain and speculative output of one prompt, as token ids.

    `drafts` is "own" for the runner's drafter and "scripted" for `ScriptedDrafter`.
    """

    drafts: str
    chain_len: ChainLen
    plain: list[int]
    speculative: list[int]
    stats: Stats
    tree: Shape | None = None

    @property
    def identical(self) -> bool:
        """Whether speculation changed nothing."""
        return self.plain == self.speculative

    @property
    def first_difference(self) -> int:
        """The index of the first token that differs, or the length of the shorter output."""
        pairs = enumerate(zip(self.plain, self.speculative, strict=False))
        shorter = min(len(self.plain), len(self.speculative))
        return next((i for i, (a, b) in pairs if a != b), shorter)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first token that differs; a token is None where its output ended before.

    `prompt` counts from 1, `position` from 0 within the output. `nats` is the target's logit of the
    plain token minus that of the other one, None where it is not known.
    """

    prompt: int
    chain_len: ChainLen
    position: int
    plain: int | None
    speculative: int | None
    plain_text: str | None = None
    speculative_text: str | None = None
    nats: float | None = None
    tree: str | None = None

    def __str__(self) -> str:
        gap = "" if self.nats is None else f", {self.nats:.4f} nats apart"
        shape = f"K = {self.chain_len}" if self.tree is None else f"tree {self.tree}"
        return (
            f"prompt {self.prompt}, {shape}, token {self.position}: "
            f"plain {self.plain} {self.plain_text!r}, "
            f"speculative {self.speculative} {self.speculative_text!r}{gap}"
        )


@dataclass(kw_only=True, slots=True)
class LosslessReport:
    """The sum of many comparisons. `tokens` counts plain tokens, once for each comparison."""

    prompts: int = 0
    compared: int = 0
    tokens: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def identical(self) -> int:
        """How many outputs speculation did not change."""
        return self.compared - len(self.differences)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as one object."""
        return {
            "prompts": self.prompts,
            "compared": self.compared,
            "identical": self.identical,
            "tokens": self.tokens,
            "differences": [asdict(difference) for difference in self.differences],
        }

    def lines(self) -> Iterator[str]:
        """Yield a line for each difference, then the totals."""
        yield from map(str, self.differences)
        yield (
            f"{self.identical} of {self.compared} outputs identical, {self.tokens} tokens compared"
        )


def decode_with_own_drafter(
    runner: Runner, prompt: list[int], plain: list[int], shape: DraftShape, max_new_tokens: int
) -> tuple[list[int], Stats]:
    """Decode as a user would, with the runner's own drafter."""
    if isinstance(shape, Shape):
        result = runner.generate(prompt, max_new_tokens, tree=shape)
    else:
        result = runner.generate(prompt, max_new_tokens, shape)
    return result.token_ids, result.stats


def decode_with_script(
    runner: Runner, prompt: list[int], plain: list[int], shape: DraftShape, max_new_tokens: int
) -> tuple[list[int], Stats]:
    """Decode with drafts from the plain output, the first 0, 1, 2, ... right in turn."""
    assert shape != AUTO, "what is right depends on the shape, which auto would choose"
    executor, constants = runner.executor, runner.constants
    pool = runner.engine.sequence_pool
    pool.lend(1)
    running = BatchState(pool.order[:1], constants.tail, executor.device)
    tree = shape if isinstance(shape, Shape) else Shape.chain(shape)
    drafter = ScriptedDrafter(len(prompt), plain, lambda n: n % (tree.depth + 1), executor.device)
    round_ = Round(runner.target, drafter, tree, running)
    round_.run = executor.repeat(round_.step)
    limits = Limits(
        max_new_tokens=min(max_new_tokens, constants.max_seq_len - len(prompt)),
        stop_ids=frozenset(constants.eos_ids),
    )
    request = Request(prompt=tuple(prompt), limits=limits, chain_len=tree.depth, tree=tree)
    result = generate(Engine(OneRound(round_)), Generation(request=request))
    return result.token_ids, result.stats


OWN: Mapping[str, Decode] = {"own": decode_with_own_drafter}
OWN_AND_SCRIPT: Mapping[str, Decode] = {**OWN, "scripted": decode_with_script}
"""The runner's own drafter, which may always or never be right, and scripted drafts, a changing
number right."""


def compare(
    runner: Runner,
    prompt: list[int],
    chain_lens: Sequence[ChainLen],
    max_new_tokens: int,
    decoders: Mapping[str, Decode] = OWN,
    trees: Sequence[Shape] = (),
) -> Iterator[Comparison]:
    """Decode a prompt plainly, then with every chain length and tree, by every decoder."""
    plain = runner.generate(prompt, max_new_tokens, speculate=False).token_ids
    for shape, (name, decode) in itertools.product([*chain_lens, *trees], decoders.items()):
        output, stats = decode(runner, prompt, plain, shape, max_new_tokens)
        tree = shape if isinstance(shape, Shape) else None
        yield Comparison(
            drafts=name,
            chain_len=shape.depth if isinstance(shape, Shape) else shape,
            plain=plain,
            speculative=output,
            stats=stats,
            tree=tree,
        )


def check_lossless(
    runner: Runner,
    prompts: Iterable[Prompt],
    chain_lens: Sequence[ChainLen],
    max_new_tokens: int,
    *,
    trees: Sequence[Shape] = (),
    decoders: Mapping[str, Decode] = OWN,
    raw_prompt: bool = False,
    target_logits: TargetLogits | None = None,
) -> LosslessReport:
    """Compare the outputs of all prompts and explain each that differs.

    With `target_logits`, say by how many nats the target prefers the plain token.
    """
    report = LosslessReport()
    for prompt in prompts:
        ids = runner.encode(prompt, raw=raw_prompt)
        report.prompts += 1
        for comparison in compare(runner, ids, chain_lens, max_new_tokens, decoders, trees):
            report.compared += 1
            report.tokens += len(comparison.plain)
            if not comparison.identical:
                report.differences.append(
                    explain(runner, report.prompts, ids, comparison, target_logits)
                )
    return report


def explain(
    runner: Runner,
    number: int,
    prompt: list[int],
    comparison: Comparison,
    target_logits: TargetLogits | None,
) -> Difference:
    """Return the first token in which two outputs differ."""
    index = comparison.first_difference
    plain, speculative = (
        ids[index] if index < len(ids) else None
        for ids in (comparison.plain, comparison.speculative)
    )
    nats = None
    if target_logits is not None and plain is not None and speculative is not None:
        logits = target_logits([*prompt, *comparison.plain[:index]])
        nats = float(logits[plain] - logits[speculative])
    return Difference(
        prompt=number,
        chain_len=comparison.chain_len,
        position=index,
        plain=plain,
        speculative=speculative,
        plain_text=text_of(runner, plain),
        speculative_text=text_of(runner, speculative),
        nats=nats,
        tree=None if comparison.tree is None else str(comparison.tree),
    )


def text_of(runner: Runner, token: int | None) -> str | None:
    """Return the text of one token, None for no token or an artifact without a tokenizer."""
    if token is None or not tokenizer_files(runner.directory):
        return None
    return runner.tokenizer.decode([token])


def logits_of_target(name: str, max_seq_len: int) -> TargetLogits:
    """Load a target's checkpoint and return a function that gives its last logits.

    Of a registered name or a repository it is downloaded. Raises what `locate` and `load_target`
    raise.
    """
    directory = locate(ExportSpec(target_model=name, drafter="ngram")).target_dir
    target = load_target(directory or name, max_seq_len)
    return lambda ids: last_logits(target, ids)


@torch.no_grad()
def last_logits(target: TapTarget, ids: list[int]) -> Tensor:
    """Return the logits after `ids`, float32 [V]; chunks are as long as a sliding window takes."""
    target.reset_cache()
    longest = target.sliding_window or len(ids)
    for first in range(0, len(ids), longest):
        chunk = torch.tensor([ids[first : first + longest]])
        positions = torch.arange(first, first + chunk.shape[1])
        logits, _ = target.forward_logits_taps(chunk, positions, last_logits_only=True)
    return logits[0, -1].float()


def random_prompt(runner: Runner, tokens: int, seed: int) -> list[int]:
    """Return random token ids; the same ones for the same seed."""
    rng = random.Random(seed)
    return [rng.randrange(runner.constants.vocab_size) for _ in range(tokens)]
