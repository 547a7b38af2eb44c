"""A toy language model with the interfaces of decoding: its next token follows from the text."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.input_embeds import InputEmbeds
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk, plan_chunks
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, StepRows
from eagle_aot.runtime_runner.decode.target import Forward
from eagle_aot.runtime_runner.images.prompt_image import ImageSpan, PlacedImage
from eagle_aot.runtime_runner.sampling.sampler import Sampler

VOCAB = 17
TAIL = 16
MAX_ROWS = 64


def next_token(text: Sequence[int], seed: int) -> int:
    """Return the next token, which depends on the last four tokens, the length and a seed."""
    state = seed + len(text)
    for token in text[-4:]:
        state = (state * 1103515245 + token + 12345) % 2**31
    return (state >> 7) % VOCAB


def plain_text(prompt: Sequence[int], seed: int, length: int) -> list[int]:
    """Return what greedy decoding must give."""
    text = list(prompt)
    for _ in range(length):
        text.append(next_token(text, seed))
    return text[len(prompt) :]


class ToyTarget:
    """Keeps tokens in slots and reads what a row may: committed ones by position, then its tail.

    Fails at a slot that was never written. The feature of position p is the number p.
    """

    tail_length = TAIL
    max_rows = MAX_ROWS
    can_copy_rows = True
    has_states = False
    suppressed_ids: Tensor | None = None
    window = 0
    rewind = 10**6

    def __init__(self, seed: int, longest: int, min_prefill: int, sequences: int = 1) -> None:
        self.seed, self.longest, self.min_prefill = seed, longest, min_prefill
        self.slots: list[dict[int, int]] = [{} for _ in range(sequences)]
        self.forwards = 0

    def plan_prompt(
        self, length: int, reused: int = 0, images: Sequence[ImageSpan] = ()
    ) -> list[Chunk]:
        assert not images
        return plan_chunks(length, self.longest, self.min_prefill, MAX_ROWS, reused)

    def input_embeds(self, chunk: Chunk, images: Sequence[PlacedImage]) -> InputEmbeds:
        raise NotImplementedError("it reads text alone")

    def run_prompt(
        self,
        tokens: Tensor,
        input_pos: Tensor,
        sequence: Tensor,
        chunk: Chunk,
        embeds: InputEmbeds | None = None,
    ) -> Forward:
        assert input_pos.tolist() == list(range(chunk.start, chunk.stop))
        self.before_chunk(int(sequence), chunk)
        slots = self.slots[int(sequence)]
        self.forwards += 1
        slots.update(zip(input_pos.tolist(), tokens[0].tolist(), strict=True))
        ends = range(chunk.start + 1, chunk.stop + 1)
        following = [next_token([slots[p] for p in range(end)], self.seed) for end in ends]
        returned = following if chunk.few_rows else following[-1:]
        self.after_chunk(int(sequence), chunk)
        return forward([returned], [[end - 1 for end in ends]])

    def before_chunk(self, sequence: int, chunk: Chunk) -> None:
        """Called before a prompt's chunk runs; subclasses count, check or fail here."""

    def after_chunk(self, sequence: int, chunk: Chunk) -> None:
        """Called after a prompt's chunk has run."""

    def verify(self, step: StepRows, moves: Tensor, *, largest_only: bool = False) -> Forward:
        self.forwards += 1
        following, all_positions = [], []
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
            all_positions.append(positions)
        return forward(following, all_positions)

    def copy_rows(self, source: Tensor, sequence: Tensor, count: int) -> None:
        assert int(source) != int(sequence)
        rows = self.slots[int(source)]
        copied = {slot: rows[slot] for slot in range(count)}
        self.slots[int(sequence)].clear()
        self.slots[int(sequence)].update(copied)

    def keep_state(self, sequence: int, place: int) -> None:
        raise NotImplementedError("it has no states")

    def restore_state(self, source: int, place: int, sequence: int) -> None:
        raise NotImplementedError("it has no states")

    def _move(self, slots: dict[int, int], sources: list[int], first: int) -> None:
        moved = {s: slots[s] for s in sources if s >= 0}
        targets = {first - TAIL + i: s for i, s in enumerate(sources) if s >= 0}
        assert all(t == s or t not in moved for t, s in targets.items()), "a race"
        slots.update({target: moved[source] for target, source in targets.items()})

    def _text(self, slots: dict[int, int], position: int, tail: list[int]) -> list[int]:
        if position < 0:
            assert set(tail) == {-1}
            return []
        assert [slot < 0 for slot in tail] == [position - TAIL + 1 + i < 0 for i in range(TAIL)]
        path = [slots[slot] for slot in tail if slot >= 0]
        return [slots[p] for p in range(position - TAIL + 1)] + path


def forward(following: list[list[int]], positions: list[list[int]]) -> Forward:
    """Return logits whose largest is at the token that follows."""
    logits = one_hot(torch.tensor(following), VOCAB).float()
    return Forward(logits, torch.tensor(positions).float().unsqueeze(-1))


class RecordingDrafter:
    """Guesses right with a given pattern, and checks what it observes against the true texts."""

    kind, grows_trees, reads_features = "recording", True, True

    def __init__(
        self,
        text: Sequence[int],
        pattern: Sequence[bool],
        may_skip: bool = False,
        others: Sequence[Sequence[int]] = (),
    ) -> None:
        """`others` are the texts of the sequences after the first."""
        self.texts = [list(text), *map(list, others)]
        self.pattern, self.may_skip = pattern, may_skip
        self.slots: list[dict[int, int]] = [{} for _ in self.texts]
        self.proposed = 0

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        for b, sequence in enumerate(accepted.sequences.tolist()):
            if int(accepted.bonus_position[b]) < 0:
                continue
            text, slots = self.texts[sequence], self.slots[sequence]
            for i in range(int(accepted.count[b]) + 1):
                slot, token = int(accepted.bonus_position[b]) + i, int(accepted.tokens[b, i])
                assert self.may_skip or slot <= len(slots), "a gap in the draft cache"
                feature = features[b, int(accepted.rows[b, i]), 0]
                assert feature == slot, "the feature of another position"
                if slot + 1 < len(text):  # the last round may exceed the budget
                    assert token == text[slot + 1], "a slot pairs with the token after it"
                slots[slot] = token

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        self.observe(accepted, features)
        slots = range(
            int(accepted.bonus_position), int(accepted.bonus_position) + accepted.tokens.shape[1]
        )
        return torch.tensor([[self.pattern[slot % len(self.pattern)] for slot in slots]])

    def truth(self, sequence: int, position: int) -> int:
        """Return the token at a position of a text, any after its end."""
        text = self.texts[sequence]
        return text[position] if position < len(text) else 0

    def right(self) -> bool:
        """Return whether the next guess is right."""
        self.proposed += 1
        return self.pattern[(self.proposed - 1) % len(self.pattern)]

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        drafts, count = [], shape.depth
        for position, sequence in zip(
            running.position.tolist(), running.sequences.tolist(), strict=True
        ):
            if position < 0:
                drafts.append([0] * count)
                continue
            truths = [self.truth(sequence, position + 1 + i) for i in range(count)]
            drafts.append([t if self.right() else (t + 1) % VOCAB for t in truths])
        return Draft(torch.tensor(drafts))


class SeeingDrafter:
    """Reads the texts in the target's slots; right or wrong by a pattern."""

    kind, grows_trees, reads_features = "seeing", True, True

    def __init__(self, target: ToyTarget, pattern: Sequence[bool]) -> None:
        self._target, self._pattern, self._proposed = target, pattern, 0

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        for row, first in enumerate(accepted.bonus_position.tolist()):
            assert first < 0 or features[row, 0, 0] == first, "the feature of another position"

    def catch_up(self, accepted: Accepted, features: Tensor, sampler: Sampler) -> Tensor:
        """Return that it would have drafted none of the tokens."""
        self.observe(accepted, features)
        return accepted.tokens < 0

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        texts = [self._text(running, index) for index in range(len(running))]
        if shape.is_chain:
            return Draft(torch.tensor([self._chain(text, shape.depth) for text in texts]))
        parents = full_tree(shape)
        draft = tree_of([self._tree(text, parents) for text in texts], [parents] * len(texts))
        return replace(draft, depth=shape.depth)  # as drafters do, the requested one

    def _text(self, running: BatchState, index: int) -> list[int]:
        """Return all tokens up to the bonus; the last may lie where a tree has left them."""
        position, moves = int(running.position[index]), running.moves[index].tolist()
        slots = self._target.slots[int(running.sequences[index])]
        where = list(range(max(position, 0)))
        for back, source in enumerate(reversed(moves), start=1):
            if source >= 0:
                where[position - back] = source
        return [*(slots[slot] for slot in where), int(running.bonus[index])]

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
    """Proposes trees of a given shape; at most one of the branches after a token is right."""

    def __init__(
        self, text: Sequence[int], pattern: Sequence[bool], parents: Sequence[int]
    ) -> None:
        """`parents[i]` is the row, at most i, of the token before draft i."""
        super().__init__(text, pattern)
        self.parents = list(parents)

    @property
    def shape(self) -> Shape:
        """The shape of its trees."""
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
    """Return a draft of these nodes; the first child of a token is ranked first."""
    ranks = [[row[:i].count(parent) for i, parent in enumerate(row)] for row in parents]
    deepest = max(max(depths(row)) for row in parents)
    return Draft(
        torch.tensor(tokens, dtype=torch.int64),
        torch.tensor(parents, dtype=torch.int64),
        torch.tensor(ranks, dtype=torch.int64),
        deepest,
    )


def full_tree(shape: Shape) -> list[int]:
    """Return the parents of as many nodes, depth by depth, with as many children as may be."""
    parents: list[int] = []
    for row in range(shape.nodes):
        if depths(parents)[row] < shape.depth:
            parents += [row] * min(shape.topk, shape.nodes - len(parents))
    return parents


def depths(parents: Sequence[int]) -> list[int]:
    """Return the depth of the bonus and of each node."""
    depth = [0]
    for parent in parents:
        depth.append(depth[parent] + 1)
    return depth
