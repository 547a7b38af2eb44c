"""The parts of a round, each as a step on tensors that stay where they are."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE, TARGET_VERIFY
from eagle_aot.runtime_runner.bench.results import PLAIN, SEED, STEP, VERIFY
from eagle_aot.runtime_runner.bench.timing import Timed
from eagle_aot.runtime_runner.executors import Executor
from eagle_aot.runtime_runner.round import Round, Verifier
from eagle_aot.runtime_runner.runner import Runner


class Forward:
    """One forward of a method over a fixed number of rows at the end of a context.

    It overwrites the same cache slots every time, so it may be repeated.
    """

    def __init__(
        self, executor: Executor, method: str, vocab_size: int, rows: int, *features: Tensor
    ) -> None:
        """`features` [1, rows, H] is there for the draft head alone."""
        self.method = method
        self.rows = rows
        self._executor = executor
        self._vocab_size = vocab_size
        self._features = features
        self._tokens = torch.zeros(1, rows, dtype=torch.int64, device=executor.device)
        self._input_pos = torch.arange(rows, device=executor.device)
        self.timed = Timed(executor.repeat(self._step), self._prepare)

    @property
    def name(self) -> str:
        """What the report calls it."""
        if self.method == TARGET_VERIFY:
            return PLAIN if self.rows == 1 else VERIFY
        return STEP if self.rows == 1 else SEED

    def place(self, context: int) -> None:
        """Run at the positions behind the first `context` tokens from now on."""
        self._input_pos.copy_(torch.arange(context, context + self.rows))

    def _prepare(self) -> None:
        fill_randomly(self._tokens, self._vocab_size)

    def _step(self) -> Tensor:
        inputs = self._tokens, *self._features, self._input_pos
        return self._executor.run(self.method, *inputs)[0]


class WholeRound:
    """A round of the runner's own, begun at the same context before every call."""

    def __init__(self, round_: Round, vocab_size: int) -> None:
        self.chain_len = round_.chain_len
        self._round = round_
        self._vocab_size = vocab_size
        self._bonus = torch.zeros(1, 1, dtype=torch.int64, device=round_.device)
        self._context = 0
        self.timed = Timed(round_.play, self._prepare, moves=True)

    def place(self, context: int) -> None:
        """Begin behind the first `context` tokens from now on."""
        self._context = context

    def _prepare(self) -> None:
        fill_randomly(self._bonus, self._vocab_size)
        self._round.begin(self._bonus, self._context)


class Parts:
    """All that is timed of one artifact, at one context after the other."""

    def __init__(self, runner: Runner, chain_lens: Sequence[int]) -> None:
        """To be made before a context is filled: recording a step runs it at the first slots."""
        constants, executor = runner.constants, runner.executor
        vocab, window = constants.vocab_size, constants.max_verify_window
        self.rounds = [WholeRound(runner.round(k), vocab) for k in (0, *chain_lens)]
        self.forwards = [
            Forward(executor, TARGET_VERIFY, vocab, rows) for rows in range(1, window + 1)
        ]
        features = some_features(runner.verifier, vocab, window, executor.device)
        for rows in (1, *(chain_len + 1 for chain_len in chain_lens)):
            own = features[:, :rows].clone()
            self.forwards.append(Forward(executor, DRAFT_DECODE, vocab, rows, own))

    def place(self, context: int) -> None:
        """Run everything at the end of the first `context` tokens, which are in the caches."""
        for forward in self.forwards:
            forward.place(context)
        for round_ in self.rounds:
            round_.place(context)


def fill_randomly(tokens: Tensor, vocab_size: int) -> None:
    """Put other random token ids into `tokens` int64, where they are."""
    tokens.random_(vocab_size)


def some_features(verifier: Verifier, vocab_size: int, rows: int, device: torch.device) -> Tensor:
    """Fused features [1, rows, H] of random tokens."""
    tokens = torch.randint(vocab_size, (1, rows), device=device)
    return verifier.forward(tokens, torch.arange(rows, device=device))[1]
