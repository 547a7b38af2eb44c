"""A cache that is used as a runner uses one: prompts, rounds of trees, moves, new texts."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import torch
from torch import Tensor

from eagle_aot.targets.decoder.kv_cache import CacheSpec, view_of
from eagle_aot.targets.step import MAX_ROWS, TAIL, PromptChunk, Step, one_row_of_rows
from support.kernels.sdpa_cases import Forward, Layer, Row, Text, entries, forward

LONGEST = 400
"""Tokens of a text, at most."""

TOKENS = 8192

Tree = Sequence[tuple[int, int]]
"""The rows of a step: whom each follows (-1: the committed text), and its slot behind the text."""


class CachePlay:
    """One layer's cache of several sequences; every token that is written is a new one.

    Padding rows hold `padding`: finite, as a model's numbers are.
    """

    def __init__(
        self,
        layer: Layer,
        sequences: int = 1,
        splits_keys: bool = False,
        padding: float = 100.0,
        first_token: int = 1,
    ) -> None:
        self.layer, self.splits_keys, self.padding = layer, splits_keys, padding
        sizes = CacheSpec(LONGEST, layer.dtype, sequences)
        self.cache = sizes.cache(layer.kv_heads, layer.head_dim, layer.window)
        self.texts: list[list[int]] = [[] for _ in range(sequences)]
        self.moves = torch.full((sequences, TAIL), -1)
        self._steps: dict[int, Text] = {}
        self._new: Iterator[int] = count(first_token)

    def prompt(self, sequence: int, rows: int) -> tuple[Tensor, Tensor]:
        """Run a chunk behind the text; what its rows found, and should have."""
        behind = self.texts[sequence]
        made = self._made({sequence: self._text(behind, [(i - 1, i) for i in range(rows)])}, rows)
        chunk = PromptChunk(made.positions[0], torch.tensor([sequence]))
        behind += self._tokens(made)[0].tolist()
        return self._run(chunk, made), made.expected()

    def step(self, trees: Mapping[int, Tree], rows: int = 0) -> tuple[Tensor, Tensor]:
        """Run rows of several sequences; what they found [B, T, heads, D], and should have."""
        steps = {sequence: self._text(self.texts[sequence], t) for sequence, t in trees.items()}
        rows = rows or max(map(len, trees.values()))
        made, sequences = self._made(steps, rows), torch.tensor(list(trees))
        step = Step(made.positions, sequences, made.tail, self.moves[sequences], self.splits_keys)
        found = self._run(step, made)
        self.moves[sequences] = -1
        self._steps = steps
        return found, made.expected()

    def rows(self, sequence: int) -> tuple[Row, ...]:
        """Of the last step."""
        return self._steps[sequence].rows

    def path(self, sequence: int, row: int) -> list[int]:
        """All tokens up to a row of the last step."""
        return self._steps[sequence].path(row)

    def renumber(self, first_token: int) -> None:
        """Call the next token so."""
        self._new = count(first_token)

    def repeat(self, tokens: Sequence[int]) -> None:
        """Begin the first sequence anew, with given tokens."""
        self.forget(0)
        for done in range(0, len(tokens), MAX_ROWS):
            self._new = iter(tokens[done:])
            self.prompt(0, len(tokens[done : done + MAX_ROWS]))

    def held(self, sequence: int, slots: Sequence[int]) -> Tensor:
        """The keys in logical slots of a sequence, [kv_heads, slots, D]."""
        places = self.cache.physical(torch.tensor(slots))
        return self.cache.by_sequence(self.cache.k)[:, sequence, places]

    def keys_of(self, tokens: Sequence[int]) -> Tensor:
        """[kv_heads, tokens, D]."""
        return entries(self.layer, TOKENS, "cpu")[1][tokens].transpose(0, 1)

    def accept(self, sequence: int, row: int) -> None:
        """Commit the path to a row of the last step: the next step moves it to its place."""
        text = self._steps[sequence]
        branch = text.branch(row)
        slots = [node.slot for node in branch]
        self.texts[sequence] = [*text.committed, *(node.token for node in branch)]
        self.moves[sequence] = torch.tensor([-1] * (TAIL - len(slots)) + slots)

    def forget(self, sequence: int) -> None:
        """Begin a new text; the cache is left as it is."""
        self.texts[sequence] = []
        self.moves[sequence] = -1

    def _text(self, behind: Sequence[int], rows: Tree) -> Text:
        start = len(behind)
        return Text(
            list(behind), tuple(Row(next(self._new), parent, start + at) for parent, at in rows)
        )

    def _made(self, steps: Mapping[int, Text], rows: int) -> Forward:
        return forward(
            self.layer,
            *steps.values(),
            rows=rows,
            caches=list(steps),
            number_of_caches=len(self.texts),
            hidden=self.padding,
            tokens=TOKENS,
        )

    def _tokens(self, made: Forward) -> Tensor:
        """int64 [B, T], 0 for padding: no text has that token."""
        tokens = torch.zeros_like(made.positions)
        for b, text in enumerate(made.texts):
            tokens[b, : len(text.rows)] = torch.tensor([row.token for row in text.rows])
        return tokens

    def _run(self, rows: Step | PromptChunk, made: Forward) -> Tensor:
        tokens = self._tokens(made)
        _, *kv = entries(self.layer, TOKENS, "cpu")
        k, v = (
            torch.where((tokens > 0)[..., None, None], table[tokens], self.padding) for table in kv
        )
        view = view_of(rows, self.cache)
        view.store(self.cache, one_row_of_rows(k), one_row_of_rows(v))
        attended = view.attend(self.cache, one_row_of_rows(made.q), self.layer.scale)
        return attended.view_as(made.q)
