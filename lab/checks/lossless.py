"""Does speculation change a token? What drafts were in against what plain decoding gives.

Plain decoding is the target's own word, so any difference is a fault, and the first token of it is
what there is to explain.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from eagle_aot.artifact import tokenizer_files
from eagle_aot.common.prompts import Prompt
from eagle_aot.lab.scripted import ScriptedDrafter
from eagle_aot.runtime_runner.adaptive.chain_length import AUTO_LENGTH, ChainLen
from eagle_aot.runtime_runner.decode.round import BatchState, Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine import Engine, Limits, Request
from eagle_aot.runtime_runner.engine.generation import Generation, generate
from eagle_aot.runtime_runner.engine.schedule import OneRound
from eagle_aot.runtime_runner.results.stats import Stats
from eagle_aot.runtime_runner.runner import Runner

Decode = Callable[[Runner, list[int], list[int], ChainLen | Shape, int], tuple[list[int], Stats]]
"""Output for a prompt whose plain output is given as well, with a chain length or a tree and at
most so many new tokens."""
Logits = Callable[[list[int]], Tensor]
"""The target's behind token ids, float32 [vocabulary]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One prompt's plain and speculative output, token ids; `drafts` says whose they were and
    `stats` what they were worth."""

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
    def position(self) -> int:
        """Of the first token that differs, or where the shorter output ends."""
        pairs = enumerate(zip(self.plain, self.speculative, strict=False))
        shorter = min(len(self.plain), len(self.speculative))
        return next((i for i, (a, b) in pairs if a != b), shorter)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first token that differs, None where an output has ended before it.

    `prompt` counts from 1, `position` from 0 within the output; `nats` is what the target gives the
    plain token more than the other one, None where that is not known.
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
class Tally:
    """What many comparisons came to; `tokens` are plain ones, once for each comparison."""

    prompts: int = 0
    compared: int = 0
    tokens: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def identical(self) -> int:
        """Outputs that speculation did not change."""
        return self.compared - len(self.differences)

    def to_json(self) -> dict[str, Any]:
        """All of it as one object."""
        counts = {"prompts": self.prompts, "compared": self.compared, "identical": self.identical}
        found = [asdict(difference) for difference in self.differences]
        return counts | {"tokens": self.tokens, "differences": found}

    def lines(self) -> Iterator[str]:
        """One for each difference and one for all."""
        yield from map(str, self.differences)
        yield (
            f"{self.identical} of {self.compared} outputs identical, {self.tokens} tokens compared"
        )


def with_own(
    runner: Runner,
    prompt: list[int],
    plain: list[int],
    shape: ChainLen | Shape,
    max_new_tokens: int,
) -> tuple[list[int], Stats]:
    """As a user would, with the runner's own drafter."""
    if isinstance(shape, Shape):
        result = runner.generate(prompt, max_new_tokens, tree=shape)
    else:
        result = runner.generate(prompt, max_new_tokens, shape)
    return result.token_ids, result.stats


def with_script(
    runner: Runner,
    prompt: list[int],
    plain: list[int],
    shape: ChainLen | Shape,
    max_new_tokens: int,
) -> tuple[list[int], Stats]:
    """With 0, 1, 2, ... right drafts per round, from the plain output, recorded like the head's."""
    assert shape != AUTO_LENGTH, "what is right would follow from what was chosen"
    executor, constants = runner.executor, runner.constants
    running = BatchState([0], constants.tail, executor.device)
    tree = shape if isinstance(shape, Shape) else Shape.chain(shape)
    drafter = ScriptedDrafter(len(prompt), plain, lambda n: n % (tree.depth + 1), executor.device)
    round_ = Round(runner.target, drafter, tree, running)
    round_.play = executor.repeat(round_.step)
    room = min(max_new_tokens, constants.max_seq_len - len(prompt))
    limits = Limits(room=room, stop_ids=frozenset(constants.eos_ids))
    request = Request(prompt=tuple(prompt), limits=limits, chain_len=tree.depth, tree=tree)
    result = generate(Engine(OneRound(round_)), Generation(request=request))
    return result.token_ids, result.stats


OWN: Mapping[str, Decode] = {"own": with_own}
OWN_AND_SCRIPT: Mapping[str, Decode] = {**OWN, "scripted": with_script}
"""Drafts of the runner's own drafter, which may be right always or never, and drafts that are right
in a changing number of places."""


def compare(
    runner: Runner,
    prompt: list[int],
    chain_lens: Sequence[ChainLen],
    max_new_tokens: int,
    drafts: Mapping[str, Decode] = OWN,
    trees: Sequence[Shape] = (),
) -> Iterator[Comparison]:
    """Decode a prompt plainly, then with every chain length and every tree, with drafts of every
    kind."""
    plain = runner.generate(prompt, max_new_tokens, speculate=False).token_ids
    for shape, (name, decode) in itertools.product([*chain_lens, *trees], drafts.items()):
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
    raw_prompt: bool = False,
    logits: Logits | None = None,
) -> Tally:
    """Compare the outputs of all prompts, and explain each that differs; with the target's own
    `logits` also by how much it prefers the plain token."""
    tally = Tally()
    for prompt in prompts:
        ids = runner.encode(prompt, raw=raw_prompt)
        tally.prompts += 1
        for found in compare(runner, ids, chain_lens, max_new_tokens, trees=trees):
            tally.compared += 1
            tally.tokens += len(found.plain)
            if not found.identical:
                tally.differences.append(explained(runner, tally.prompts, ids, found, logits))
    return tally


def explained(
    runner: Runner, number: int, prompt: list[int], found: Comparison, logits: Logits | None
) -> Difference:
    """The first token of two outputs that are not the same."""
    place = found.position
    plain, other = (
        ids[place] if place < len(ids) else None for ids in (found.plain, found.speculative)
    )
    nats = None
    if logits is not None and plain is not None and other is not None:
        behind = logits([*prompt, *found.plain[:place]])
        nats = float(behind[plain] - behind[other])
    return Difference(
        prompt=number,
        chain_len=found.chain_len,
        position=place,
        plain=plain,
        speculative=other,
        plain_text=text_of(runner, plain),
        speculative_text=text_of(runner, other),
        nats=nats,
        tree=None if found.tree is None else str(found.tree),
    )


def text_of(runner: Runner, token: int | None) -> str | None:
    """Of one token, where the artifact has a tokenizer."""
    if token is None or not tokenizer_files(runner.directory):
        return None
    return runner.tokenizer.decode([token])
