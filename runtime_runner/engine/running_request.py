"""One request's text while it is served."""

import time
from collections.abc import Sequence

from torch import Tensor

from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.decode.prompt_scoring import PromptScoring
from eagle_aot.runtime_runner.decode.round import Outcome
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.engine.cache_slots import CacheContents
from eagle_aot.runtime_runner.engine.request import (
    Finished,
    Reason,
    Request,
    RequestId,
    RequestTimes,
    Scored,
    Tokens,
)
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs


class RunningRequest:
    """What the host knows of it: the tokens so far, and why there are no more.

    `sequence` is the cache that it has, None while it waits for one. Its first `rows` tokens lie
    there in the slots of their positions, and `scratch` slots behind a tail's may be written too.
    Of the rows, the first `kept` were not run. While its prompt is scored there are none. `missed`
    is the first row of a drafted text that the drafter was not shown, None where it was shown all.
    """

    def __init__(self, number: RequestId, request: Request) -> None:
        self.number, self.request = number, request
        self.sequence: int | None = None
        self.kept = self.rows = self.scratch = 0
        self.scoring: PromptScoring | None = None
        self.missed: int | None = None
        self.run: Prefill | None = None
        self.output: list[int] = []
        self.ended: Reason | None = None
        self.stats = Stats(chain_len=request.chain_len, tree=request.tree)
        self._started = self._first_token = time.perf_counter()

    @property
    def prompt_left(self) -> int:
        """Tokens of the prompt to go, each twice that is to be scored first."""
        return sum(part.left for part in (self.scoring, self.run) if part)

    @property
    def room(self) -> int:
        """Tokens that it may still have."""
        return self.request.limits.room - len(self.output)

    @property
    def position(self) -> int:
        """Of the last token, which is in no cache yet."""
        return len(self.request.prompt) + len(self.output) - 1

    def start(self, sequence: int, kept: int) -> None:
        """A cache was free, and holds the first `kept` rows."""
        self.sequence, self.kept, self.rows = sequence, kept, kept
        self._started = time.perf_counter()

    def score(self) -> Scored:
        """Run the next window of the prompt, and tell of its tokens. Who wants no token behind
        them needs no more of the prompt."""
        assert self.scoring is not None
        told = self.scoring.run_window()
        self.stats.prefill_chunks += told[-1].logprob is not None  # the first needs no forward
        if not self.scoring.left:
            self.scoring = None
            if not self.room:
                self._end_prompt()
                self.ended = "room"
        return Scored(self.number, told)

    def read(self) -> Tensor:
        """Run the next chunk of the prompt. Returns the token behind it, int64 [1, 1]."""
        assert self.run is not None
        self.scratch = max(self.scratch, self.run.next_chunk.padding)
        bonus = self.run.run_chunk()
        self.stats.prefill_chunks += 1
        self.rows = max(self.kept, len(self.request.prompt) - self.run.left)
        return bonus

    def take_over(self, rows: int) -> None:
        """The first `rows` were copied from another's cache."""
        assert self.run is not None
        self.kept = self.rows = rows
        self.run.skip(rows)

    def begin(self, token: int, logprobs: Sequence[TokenLogprobs] = ()) -> Tokens:
        """The first token, which the prompt's last chunk gives. Returns it, as `add` does."""
        self._end_prompt()
        return Tokens(self.number, self._append([token]), logprobs=self._asked_of(logprobs))

    def _end_prompt(self) -> None:
        self.run = None
        self._first_token = time.perf_counter()
        self.stats.prefill_seconds = self._first_token - self._started

    def add(self, shape: Shape, outcome: Outcome, *, shown: bool = True) -> Tokens:
        """What came of a round, and whether it was `shown` to what drafts. Returns the tokens that
        count."""
        most = self.request.most
        chain_len = shape.depth if most is None else min(shape.depth, most.depth)
        drafted = chain_len if outcome.drafted is None else outcome.drafted
        if not shown and self.missed is None:
            self.missed = self.position
        self.rows = self.position + 1
        run = self._append(outcome.tokens[: outcome.accepted + 1])
        if shape.is_chain:
            self.rows += len(run) - 1
        else:  # the path is where its nodes are until the next round moves it
            self.scratch = max(self.scratch, shape.nodes)
        self.stats.add_round(
            drafted, outcome.accepted, len(run), outcome.ranks, outcome.offered_ranks
        )
        if self.request.shape is None:
            self.stats.rounds_by_shape[shape.label] += 1
        self.stats.decode_seconds = time.perf_counter() - self._first_token
        accepted = min(outcome.accepted, len(run))
        ranks = outcome.ranks[1 : accepted + 1]
        logprobs = self._asked_of(outcome.logprobs[: len(run)])
        return Tokens(self.number, run, drafted, accepted, ranks, logprobs)

    def left(self, rows: int | None = None) -> CacheContents:
        """What its cache holds, or will hold with so many of its prompt's rows."""
        placed = self.request.placed
        whole = [*placed.keys, *self.output]
        rows = self.rows if rows is None else rows
        return CacheContents(
            tokens=whole[: rows + 1],
            prompt_tokens=len(self.request.prompt),
            kept=self.kept,
            length=len(whole) if self.output else rows,
            scratch=self.scratch,
            pictures=placed.spans,
            shown=0 if self.request.is_plain else rows if self.missed is None else self.missed,
        )

    def finished(self, reason: Reason) -> Finished:
        """Its last event."""
        times = None
        if self.sequence is not None:
            ended = time.perf_counter()
            times = RequestTimes(self.sequence, self._started, self._first_token, ended)
        return Finished(self.number, reason, self.kept, self.stats, times)

    def _asked_of(self, logprobs: Sequence[TokenLogprobs]) -> list[TokenLogprobs]:
        """What it asked for of what the round of all told."""
        most = self.request.sampling.logprobs
        return [] if most is None else [one.first(most) for one in logprobs]

    def _append(self, tokens: Sequence[int]) -> list[int]:
        limits = self.request.limits
        run, stopped = limits.cut(tokens[: self.room])
        self.output += run
        if stopped:
            self.ended = "stop"
        elif not self.room:
            self.ended = "room"
        return run
