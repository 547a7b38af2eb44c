"""A toy language model behind the loop's interfaces: the next token is a function of the text."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk, plan_chunks
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, StepRows
from eagle_aot.runtime_runner.decode.target import Forward
from eagle_aot.runtime_runner.sampling.sampler import Sampler

VOCAB = 17
TAIL = 16
MAX_ROWS = 64


def next_token(text: Sequence[int], seed: int) -> int:
    """Depends on the last four tokens, the length and a seed."""
    state = seed + len(text)
    for token in text[-4:]:
        state = (state * 1103515245 + token + 12345) % 2**31
    return (state >> 7) % VOCAB


def plain_text(prompt: Sequence[int], seed: int, length: int) -> list[int]:
    """What greedy decoding must give."""
    text = list(prompt)
    for _ in range(length):
        text.append(next_token(text, seed))
    return text[len(prompt) :]


class ToyTarget:
    """Keeps tokens in slots and reads them as a row may: committed ones by position, then its tail.

    Refuses a slot that was never written; the feature of position p is the number p.
    """

    tail = TAIL
    max_rows = MAX_ROWS
    copies = True
    never = None
    window = 0
    rewind = 10**6

    def __init__(self, seed: int, longest: int, min_prefill: int, sequences: int = 1) -> None:
        self.seed, self.longest, self.min_prefill = seed, longest, min_prefill
        self.slots: list[dict[int, int]] = [{} for _ in range(sequences)]
        self.forwards = 0

    def plan_prompt(self, length: int, kept: int = 0) -> list[Chunk]:
        return plan_chunks(length, self.longest, self.min_prefill, MAX_ROWS, kept)

    def run_prompt(
        self, tokens: Tensor, input_pos: Tensor, sequence: Tensor, chunk: Chunk
    ) -> Forward:
        assert input_pos.tolist() == list(range(chunk.start, chunk.stop))
        slots = self.slots[int(sequence)]
        self.forwards += 1
        for place, token in zip(input_pos.tolist(), tokens[0].tolist(), strict=True):
            slots[place] = token
        ends = range(chunk.start + 1, chunk.stop + 1)
        following = [next_token([slots[p] for p in range(end)], self.seed) for end in ends]
        kept = following if chunk.few_rows else following[-1:]
        return forward([kept], [[end - 1 for end in ends]])

    def verify(self, step: StepRows, moves: Tensor) -> Forward:
        self.forwards += 1
        following, places = [], []
        for b, sequence in enumerate(step.sequences.tolist()):
            slots, positions = self.slots[sequence], step.positions[b].tolist()
            self._move(slots, moves[b].tolist(), positions[0])
            for row, position in enumerate(positions):
                if position >= 0:
                    slots[int(step.tail[b, row, -1])] = int(step.tokens[b, row])
            texts = [
                self._text(slots, p, step.tail[b, i].tolist()) for i, p in enumerate(positions)
            ]
            following.append([next_token(text, self.seed) if text else 0 for text in texts])
            places.append(positions)
        return forward(following, places)

    def copy_rows(self, source: Tensor, sequence: Tensor, count: int) -> None:
        assert int(source) != int(sequence)
        rows = self.slots[int(source)]
        self.slots[int(sequence)] = {place: rows[place] for place in range(count)}

    def _move(self, slots: dict[int, int], sources: list[int], first: int) -> None:
        held = {s: slots[s] for s in sources if s >= 0}
        targets = {first - TAIL + i: s for i, s in enumerate(sources) if s >= 0}
        assert all(t == s or t not in held for t, s in targets.items()), "a race"
        slots.update({target: held[source] for target, source in targets.items()})

    def _text(self, slots: dict[int, int], position: int, tail: list[int]) -> list[int]:
        if position < 0:
            assert set(tail) == {-1}
            return []
        assert [slot < 0 for slot in tail] == [position - TAIL + 1 + i < 0 for i in range(TAIL)]
        own = [slots[slot] for slot in tail if slot >= 0]
        return [slots[p] for p in range(position - TAIL + 1)] + own


def forward(following: list[list[int]], places: list[list[int]]) -> Forward:
    """Logits whose largest is at the token that follows."""
    logits = one_hot(torch.tensor(following), VOCAB).float()
    return Forward(logits, torch.tensor(places).float().unsqueeze(-1))


class RecordingDrafter:
    """Guesses right with a given pattern, and checks what it is told against the true texts."""

    def __init__(
        self,
        text: Sequence[int],
        pattern: Sequence[bool],
        may_skip: bool = False,
        others: Sequence[Sequence[int]] = (),
    ) -> None:
        """`others` are the texts of the sequences behind the first."""
        self.texts = [list(text), *map(list, others)]
        self.pattern, self.may_skip = pattern, may_skip
        self.slots: list[dict[int, int]] = [{} for _ in self.texts]
        self.proposed = 0

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        for b, sequence in enumerate(accepted.sequences.tolist()):
            if int(accepted.first[b]) < 0:
                continue
            text, slots = self.texts[sequence], self.slots[sequence]
            for i in range(int(accepted.count[b]) + 1):
                slot, token = int(accepted.first[b]) + i, int(accepted.tokens[b, i])
                assert self.may_skip or slot <= len(slots), "a gap in the draft cache"
                feature = features[b, int(accepted.rows[b, i]), 0]
                assert feature == slot, "the feature of another position"
                if slot + 1 < len(text):  # the last round may run on behind the budget
                    assert token == text[slot + 1], "a slot pairs with the token after it"
                slots[slot] = token

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        self.observe(accepted, features)
        places = range(int(accepted.first), int(accepted.first) + accepted.tokens.shape[1])
        return torch.tensor([[self.pattern[slot % len(self.pattern)] for slot in places]])

    def truth(self, sequence: int, position: int) -> int:
        """The token at a position of a text, any behind its end."""
        text = self.texts[sequence]
        return text[position] if position < len(text) else 0

    def right(self) -> bool:
        """Whether the next guess is one."""
        self.proposed += 1
        return self.pattern[(self.proposed - 1) % len(self.pattern)]

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        drafts, count = [], shape.depth
        for place, sequence in zip(
            running.position.tolist(), running.sequences.tolist(), strict=True
        ):
            if place < 0:
                drafts.append([0] * count)
                continue
            truths = [self.truth(sequence, place + 1 + i) for i in range(count)]
            drafts.append([t if self.right() else (t + 1) % VOCAB for t in truths])
        return Draft(torch.tensor(drafts))


class SeeingDrafter:
    """Reads the texts in the target's slots; right or wrong by a pattern."""

    def __init__(self, target: ToyTarget, pattern: Sequence[bool]) -> None:
        self._target, self._pattern, self._proposed = target, pattern, 0

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        for row, first in enumerate(accepted.first.tolist()):
            assert first < 0 or features[row, 0, 0] == first, "the feature of another position"

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        texts = [self._text(running, place) for place in range(len(running))]
        if shape.is_chain:
            return Draft(torch.tensor([self._chain(text, shape.depth) for text in texts]))
        parents = full_tree(shape)
        draft = tree_of([self._tree(text, parents) for text in texts], [parents] * len(texts))
        return replace(draft, depth=shape.depth)  # as deep as was asked for, as drafters say

    def _text(self, running: BatchState, place: int) -> list[int]:
        """All tokens up to the bonus, of which the last may lie where a tree has left them."""
        position, moves = int(running.position[place]), running.moves[place].tolist()
        slots = self._target.slots[int(running.sequences[place])]
        where = list(range(max(position, 0)))
        for back, source in enumerate(reversed(moves), start=1):
            if source >= 0:
                where[position - back] = source
        return [*(slots[slot] for slot in where), int(running.bonus[place])]

    def _chain(self, text: list[int], count: int) -> list[int]:
        for _ in range(count):
            right = self._pattern[self._proposed % len(self._pattern)]
            self._proposed += 1
            token = next_token(text, self._target.seed)
            text.append(token if right else (token + 1) % VOCAB)
        return text[-count:]

    def _tree(self, text: list[int], parents: Sequence[int]) -> list[int]:
        texts = [text]
        for i, parent in enumerate(parents):
            rank, before = parents[:i].count(parent), texts[parent]
            wrong = not self._pattern[len(before) % len(self._pattern)]
            texts.append([*before, (next_token(before, self._target.seed) + rank + wrong) % VOCAB])
        return [text[-1] for text in texts[1:]]


class TreeDrafter(RecordingDrafter):
    """Proposes trees of a given shape; of the branches behind one token at most one is right."""

    def __init__(
        self, text: Sequence[int], pattern: Sequence[bool], parents: Sequence[int]
    ) -> None:
        """`parents[i]` is the row, at most i, of the token before draft i."""
        super().__init__(text, pattern)
        self.parents = list(parents)

    @property
    def shape(self) -> Shape:
        """As it is asked for."""
        depth = depths(self.parents)
        return Shape(max(depth), len(self.parents) + 1, len(self.parents))

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        depth, tokens, used = [0], [], [set[int]()]
        for parent in self.parents:
            truth = self.truth(0, int(running.position) + depth[parent] + 1)
            token = truth if self.right() else (truth + 1) % VOCAB
            while token in used[parent]:
                token = (token + 1) % VOCAB
            used[parent].add(token)
            tokens.append(token)
            depth.append(depth[parent] + 1)
            used.append(set())
        return tree_of([tokens], [self.parents])


def tree_of(tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> Draft:
    """A draft of these nodes, the first behind a token ranked first."""
    ranks = [[row[:i].count(parent) for i, parent in enumerate(row)] for row in parents]
    deepest = max(max(depths(row)) for row in parents)
    parts = (torch.tensor(part, dtype=torch.int64) for part in (tokens, parents, ranks))
    return Draft(*parts, deepest)


def full_tree(shape: Shape) -> list[int]:
    """The parents of as many nodes, depth by depth, as many behind each as may be."""
    parents: list[int] = []
    for row in range(shape.nodes):
        if depths(parents)[row] < shape.depth:
            parents += [row] * min(shape.topk, shape.nodes - len(parents))
    return parents


def depths(parents: Sequence[int]) -> list[int]:
    """Of the bonus and each node behind it."""
    depth = [0]
    for parent in parents:
        depth.append(depth[parent] + 1)
    return depth
