"""Texts of a gated delta net, which the delta rule's operators take in by steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle_aot.triton_kernels.delta_rule.reference import prompt_reference

TAIL, SLOTS, PLACES = 16, 128, 3
"""Tokens of a tail, slots of each sequence, and sequences."""
LENGTH, BLOCK = 80, 32
"""Tokens of a text; a prompt is a multiple of a block."""
Launch = Callable[..., Tensor]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a state."""

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    def tokens(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Draw terms [count, W] and queries [count, keys]."""
        random = torch.Generator().manual_seed(seed)
        values = torch.randn(count, self.heads * self.value_dim, generator=random)
        keys, queries = (
            F.normalize(torch.randn(count, self.key_heads, self.key_dim, generator=random), dim=-1)
            for _ in range(2)
        )
        gates = torch.rand(count, 2 * self.heads, generator=random)
        return torch.cat((keys.flatten(1), values, gates), dim=-1), queries.flatten(1)

    def float64_reads(self, terms: Tensor, queries: Tensor) -> Tensor:
        """Return what the queries of a text read, float64 [T, heads, value_dim]."""
        state = torch.zeros(1, self.heads, self.key_dim, self.value_dim, dtype=torch.float64)
        first = torch.zeros(1, dtype=torch.int64)
        return prompt_reference(state, first, first, terms.double(), queries.double())


def strided(x: Tensor) -> Tensor:
    """Return the same numbers; those of a list are no neighbours in memory, as a step's first
    positions are not."""
    if x.dim() != 1:
        return x
    return torch.stack((x, torch.zeros_like(x)), dim=-1)[..., 0]


@dataclass
class Rows:
    """Rows of one text in a step: those of a chain, or of a tree, whose nodes name their parents.

    `first` is the position of row 0, `lacking` how many tokens before it the state lacks. `slots`
    are where the rows are stored, from which those of a path are found.
    """

    place: int
    first: int
    lacking: int
    terms: Tensor
    queries: Tensor
    parents: list[int] | None = None
    slots: list[int] = field(default_factory=list)

    def path(self, row: int) -> list[int]:
        """Return the slots of the rows that end in `row`, the oldest first."""
        assert self.parents is not None
        before = [] if row == 0 else self.path(self.parents[row])
        return [*before, self.slots[row]]


def step_inputs(state: Tensor, stored: Tensor, rows: list[Rows]) -> tuple[Tensor, ...]:
    """Store the rows in `stored` [PLACES * SLOTS, W] and return the arguments of
    `op.delta_rule_step` for a step of as many rows of each text."""
    count = len(rows[0].queries)
    chain = rows[0].parents is None
    older, takes = [], torch.zeros(len(rows), TAIL, dtype=torch.bool)
    paths = torch.zeros(len(rows) * count, TAIL, dtype=torch.int64)
    path_takes = torch.zeros(len(rows) * count, TAIL, dtype=torch.bool)
    for text, own in enumerate(rows):
        start = own.place * SLOTS
        older += [start + position % SLOTS for position in range(own.first - TAIL, own.first)]
        takes[text, TAIL - own.lacking :] = True
        slots = [start + slot for slot in own.slots]
        stored[slots] = own.terms
        for row in range(0 if chain else count):
            path = [start + slot for slot in own.path(row)]
            paths[text * count + row, TAIL - len(path) :] = torch.tensor(path)
            path_takes[text * count + row, TAIL - len(path) :] = True
    return (
        state,
        torch.tensor([own.place for own in rows]),
        torch.tensor([own.first for own in rows]),
        stored,
        torch.tensor(older),
        takes,
        torch.tensor(chain),
        torch.cat([own.terms for own in rows]),
        torch.cat([own.queries for own in rows]),
        paths.flatten(),
        path_takes,
    )


class Texts:
    """States of PLACES texts on a device, and one text that they take in."""

    def __init__(self, sizes: Sizes, launch: Sequence[Launch], device: torch.device) -> None:
        self.sizes, self.device = sizes, device
        self.prompt_launch, self.step_launch = launch
        self.terms, self.queries = sizes.tokens(LENGTH, seed=1)
        self.wrong, self.other_queries = sizes.tokens(LENGTH, seed=2)
        self.state = torch.full(
            (PLACES, sizes.heads, sizes.key_dim, sizes.value_dim), torch.nan, device=device
        )
        self.stored = torch.full((PLACES * SLOTS, self.terms.shape[1]), torch.nan)

    def prompt(self, place: int, start: int, end: int) -> Tensor:
        """Take in a part of the text, store its terms, and return what its rows read."""
        span = slice(start, end)
        self.stored[torch.arange(start, end) + place * SLOTS] = self.terms[span]
        inputs = torch.tensor([place]), torch.tensor([start]), self.terms[span], self.queries[span]
        return self.prompt_launch(self.state, *(x.to(self.device) for x in inputs)).cpu()

    def step(self, *rows: Rows) -> Tensor:
        """Run a step of as many rows of each text; return what they read, in their order."""
        _, *inputs = step_inputs(self.state, self.stored, list(rows))
        return self.step_launch(self.state, *(strided(x.to(self.device)) for x in inputs)).cpu()

    def chain(self, place: int, first: int, lacking: int, right: int, wrong: int) -> Rows:
        """Return rows of the text, and then drafts that are not of it."""
        span, end = slice(first, first + right), first + right + wrong
        terms = torch.cat((self.terms[span], self.wrong[first + right : end]))
        slots = [position % SLOTS for position in range(first, end)]
        return Rows(place, first, lacking, terms, self.queries[first:end], slots=slots)

    def tree(self, place: int, first: int, lacking: int) -> tuple[Rows, list[int]]:
        """Return a tree in scattered slots, and the nodes that are of the text, by depth."""
        parents = [0, 0, 0, 1, 2, 2, 4, 5, 6, 6, 8, 9]
        path = [0, 2, 4, 6, 9, 11]
        terms, queries = self.wrong[: len(parents)].clone(), self.other_queries[: len(parents)]
        queries = queries.clone()
        terms[path] = self.terms[first : first + len(path)]
        queries[path] = self.queries[first : first + len(path)]
        slots = [first % SLOTS, *(LENGTH + 5 * node % 13 for node in range(1, len(parents)))]
        return Rows(place, first, lacking, terms, queries, parents, slots), path


Expected = dict[int, Tensor]
"""What the rows of the text read, [LENGTH, heads, value_dim], by the length of its prompt."""


def check_one_text(sizes: Sizes, launch: Sequence[Launch], device: torch.device) -> None:
    """Check that a text's rows read the same bits by every way through it, near to float64's."""

    def new() -> Texts:
        return Texts(sizes, launch, device)

    expected = {prompt: plain_rows(new(), prompt) for prompt in (0, BLOCK, 2 * BLOCK)}
    exact = sizes.float64_reads(new().terms, new().queries)
    for reads in expected.values():
        assert (reads - exact).norm() < 1e-5 * exact.norm()
    check_cuts(new())
    for check in check_rejected_chains, check_trees, check_batches:
        check(new(), expected)


def plain_rows(texts: Texts, prompt: int) -> Tensor:
    """Return what rows read that come one by one after a prompt."""
    reads = [texts.prompt(0, 0, prompt)] if prompt else []
    for first in range(prompt, LENGTH):
        reads.append(texts.step(texts.chain(0, first, int(first > prompt), 1, 0)))
    return torch.cat(reads)


def check_cuts(texts: Texts) -> None:
    """Check a prompt that is cut between blocks."""
    whole, end = texts.prompt(0, 0, 2 * BLOCK), 2 * BLOCK
    cut = torch.cat((texts.prompt(1, 0, BLOCK), texts.prompt(1, BLOCK, end)))
    assert torch.equal(cut, whole) and torch.equal(texts.state[1], texts.state[0])


def check_rejected_chains(texts: Texts, expected: Expected) -> None:
    """Check rows after drafts that were not accepted; kept drafts would show."""
    plain = expected[32]
    texts.prompt(0, 0, 32)
    read = texts.step(texts.chain(0, 32, 0, 3, 5))
    assert torch.equal(read[:3], plain[32:35])
    assert not torch.equal(read[3], plain[35])
    read = texts.step(texts.chain(0, 35, 3, 12, 1))
    assert torch.equal(read[:12], plain[35:47])
    assert torch.equal(texts.step(texts.chain(0, 47, 12, 1, 0))[0], plain[47])
    texts.state[0].zero_()  # what a state holds is read
    assert not torch.equal(texts.step(texts.chain(0, 48, 1, 1, 0))[0], plain[48])


def check_trees(texts: Texts, expected: Expected) -> None:
    """Check the nodes of a tree that are of the text, and the row after them."""
    plain = expected[32]
    texts.prompt(0, 0, 32)
    texts.step(texts.chain(0, 32, 0, 2, 6))
    tree, path = texts.tree(0, 34, 2)
    read = texts.step(tree)
    assert torch.equal(read[path], plain[34:40])
    others = [node for node in range(len(read)) if node not in path]
    assert not any(torch.equal(read[node], row) for node in others for row in plain)
    texts.stored[34:40] = tree.terms[path]  # as moves do
    assert torch.equal(texts.step(texts.chain(0, 40, 6, 1, 0))[0], plain[40])


def check_batches(texts: Texts, expected: Expected) -> None:
    """Check chains, trees and a text of padding beside each other, at other positions."""
    read = texts.step(*(texts.chain(place, 0, 0, 1, 0) for place in (0, 2)))
    assert torch.equal(read, expected[0][:1].expand(2, -1, -1))
    starts = {2: 32, 0: 64}
    for place, start in starts.items():
        texts.prompt(place, 0, start)
    padding = Rows(1, -1, 0, texts.wrong[:12], texts.queries[:12], slots=[SLOTS - 1] * 12)
    before = texts.state[1].clone()
    chains = [texts.chain(place, start, 0, 4, 8) for place, start in starts.items()]
    read = texts.step(*chains, padding).unflatten(0, (3, 12))
    for text, start in enumerate(starts.values()):
        assert torch.equal(read[text, :4], expected[start][start : start + 4])
    trees = [texts.tree(place, start + 4, 4) for place, start in starts.items()]
    read = texts.step(*(tree for tree, _ in trees)).unflatten(0, (2, 12))
    for text, start in enumerate(starts.values()):
        assert torch.equal(read[text, trees[text][1]], expected[start][start + 4 : start + 10])
    assert texts.state[1].isnan().all() and before.isnan().all()
