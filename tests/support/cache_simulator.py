"""A KV cache that is used like the runner's: prompts, rounds of trees, moves, new texts."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import torch
from torch import Tensor

from eagle_aot.targets.decoder.cache_views import view_of
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.step import TAIL, PromptChunk, Step, one_row_of_rows
from support.kernels.sdpa_cases import Forward, Layer, Row, Text, entries, forward

LONGEST = 400
"""Maximum number of tokens of a text."""

TOKENS = 8192

Tree = Sequence[tuple[int, int]]
"""The parent of each row of a step (-1: the committed tokens) and its slot after these."""


def assert_close(output: Tensor, expected: Tensor, rtol: float = 1e-5, atol: float = 2e-6) -> None:
    """Compare two outputs of one shape [...]; the default tolerance is for float32 sums."""
    torch.testing.assert_close(output.double(), expected.double(), rtol=rtol, atol=atol)


class CacheSimulator:
    """One layer's cache of several sequences; every token that is stored is a new one.

    Padding rows hold `padding`, which is finite like the values of a model.
    """

    def __init__(
        self,
        layer: Layer,
        sequences: int = 1,
        use_splitk: bool = False,
        padding: float = 100.0,
        first_token: int = 1,
    ) -> None:
        self.layer, self.use_splitk, self.padding = layer, use_splitk, padding
        spec = CacheSpec(LONGEST, layer.dtype, sequences)
        self.cache = spec.cache(layer.kv_heads, layer.head_dim, layer.window)
        self.texts: list[list[int]] = [[] for _ in range(sequences)]
        self.moves = torch.full((sequences, TAIL), -1)
        self._steps: dict[int, Text] = {}
        self._new: Iterator[int] = count(first_token)

    def prompt(self, sequence: int, rows: int) -> tuple[Tensor, Tensor]:
        """Run a prompt chunk after the text: its output [1, T, heads, D] and the expected one."""
        text = self.texts[sequence]
        chain = [(row - 1, row) for row in range(rows)]
        case = self._forward({sequence: self._text(text, chain)}, rows)
        chunk = PromptChunk(case.positions[0], torch.tensor([sequence]))
        text += self._tokens(case)[0].tolist()
        return self._run(chunk, case), case.expected()

    def step(self, trees: Mapping[int, Tree], rows: int = 0) -> tuple[Tensor, Tensor]:
        """Run trees by sequence: their output [B, T, heads, D] and the expected one."""
        steps = {sequence: self._text(self.texts[sequence], t) for sequence, t in trees.items()}
        rows = rows or max(map(len, trees.values()))
        case, sequences = self._forward(steps, rows), torch.tensor(list(trees))
        step = Step(case.positions, sequences, case.tail, self.moves[sequences], self.use_splitk)
        output = self._run(step, case)
        self.moves[sequences] = -1
        self._steps = steps
        return output, case.expected()

    def renumber(self, first_token: int) -> None:
        """Continue with this token id."""
        self._new = count(first_token)

    def stored_keys(self, sequence: int, slots: Sequence[int]) -> Tensor:
        """Return the keys in logical slots of a sequence, [kv_heads, slots, D]."""
        physical = self.cache.physical(torch.tensor(slots))
        return self.cache.by_sequence(self.cache.k)[:, sequence, physical]

    def keys_of(self, tokens: Sequence[int]) -> Tensor:
        """Return the keys of tokens, [kv_heads, tokens, D]."""
        return entries(self.layer, TOKENS, "cpu")[1][tokens].transpose(0, 1)

    def accept(self, sequence: int, row: int) -> None:
        """Commit the path to a row of the last step; the next step moves it to its positions."""
        text = self._steps[sequence]
        branch = text.branch(row)
        slots = [node.slot for node in branch]
        self.texts[sequence] = [*text.committed, *(node.token for node in branch)]
        self.moves[sequence] = torch.tensor([-1] * (TAIL - len(slots)) + slots)

    def forget(self, sequence: int) -> None:
        """Start a new text, without changing the cache."""
        self.texts[sequence] = []
        self.moves[sequence] = -1

    def _text(self, committed: Sequence[int], tree: Tree) -> Text:
        rows = (Row(next(self._new), parent, len(committed) + slot) for parent, slot in tree)
        return Text(list(committed), tuple(rows))

    def _forward(self, steps: Mapping[int, Text], rows: int) -> Forward:
        return forward(
            self.layer,
            *steps.values(),
            rows=rows,
            caches=list(steps),
            number_of_caches=len(self.texts),
            hidden=self.padding,
            tokens=TOKENS,
        )

    def _tokens(self, case: Forward) -> Tensor:
        """Return token ids int64 [B, T], 0 for padding, which no text contains."""
        tokens = torch.zeros_like(case.positions)
        for b, text in enumerate(case.texts):
            tokens[b, : len(text.rows)] = torch.tensor([row.token for row in text.rows])
        return tokens

    def _run(self, rows: Step | PromptChunk, case: Forward) -> Tensor:
        """Store the rows' keys and values and attend: [B, T, heads, D]."""
        tokens = self._tokens(case)
        _, *kv = entries(self.layer, TOKENS, "cpu")
        k, v = (
            torch.where((tokens > 0)[..., None, None], table[tokens], self.padding) for table in kv
        )
        view = view_of(rows, self.cache)
        view.store(self.cache, one_row_of_rows(k), one_row_of_rows(v))
        attended = view.attend(self.cache, one_row_of_rows(case.q), self.layer.scale)
        return attended.view_as(case.q)
