"""The state of a request that the engine serves, on the host."""

import time
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.decode.prompt_scoring import PromptScoring
from eagle_aot.runtime_runner.decode.round import Outcome
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.engine.request import (
    Finished,
    Reason,
    Request,
    RequestId,
    RequestTimes,
    Scored,
    Tokens,
)
from eagle_aot.runtime_runner.engine.sequence_pool import CacheContents
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs


class RunningRequest:
    """A request's tokens so far, and where its rows are.

    `sequence` is its cache, None while it waits for one. It holds the rows of its first
    `rows` tokens. The first `reused` rows were not run, and `scratch_rows` slots after the tail may
    have been written too. `prefill` runs its prompt, `scoring` scores it before. The drafter has
    observed the rows before `first_unobserved_row`, all if it is None. `ended` is why there are no
    more tokens.
    """

    def __init__(
        self, request_id: RequestId, request: Request, sent_scores: int = 0, sent_tokens: int = 0
    ) -> None:
        """The first `sent_scores` scores of its prompt and `sent_tokens` of its tokens are in
        events already, because it runs again from its beginning."""
        self.request_id, self.request = request_id, request
        self._sent_scores, self._sent_tokens = sent_scores, sent_tokens
        self._scores = 0
        self.sequence: int | None = None
        self.reused = self.rows = self.scratch_rows = 0
        self.scoring: PromptScoring | None = None
        self.first_unobserved_row: int | None = None
        self.prefill: Prefill | None = None
        self.output: list[int] = []
        self.ended: Reason | None = None
        self.stats = Stats(chain_len=request.chain_len, tree=request.tree)
        self._started = self._first_token = time.perf_counter()

    def again(self) -> "RunningRequest":
        """Return the request as it waits to run from its beginning. Its tokens will be the same."""
        if self.request.constraint is not None:
            self.request.constraint.restart()
        sent_scores = max(self._sent_scores, self._scores)
        return RunningRequest(self.request_id, self.request, sent_scores, self._known_tokens)

    @property
    def length(self) -> int:
        """The tokens of its prompt and of its answer, as far as this is known."""
        return len(self.request.prompt) + self._known_tokens

    @property
    def _known_tokens(self) -> int:
        return max(self._sent_tokens, len(self.output))

    @property
    def prompt_left(self) -> int:
        """Tokens of the prompt that remain to be run or scored."""
        return sum(part.left for part in (self.scoring, self.prefill) if part)

    @property
    def tokens_left(self) -> int:
        """How many more tokens it may have."""
        return self.request.limits.max_new_tokens - len(self.output)

    @property
    def position(self) -> int:
        """The position of the last token, whose row is not cached yet."""
        return len(self.request.prompt) + len(self.output) - 1

    def start(self, sequence: int, reused: int) -> None:
        """Take a sequence whose first `reused` rows are the prompt's."""
        self.sequence, self.reused, self.rows = sequence, reused, reused
        self._started = time.perf_counter()

    def score_window(self) -> Scored:
        """Score the next window of the prompt. A request for no tokens ends after the last one."""
        assert self.scoring is not None
        scores = self.scoring.run_window()
        self.stats.prefill_chunks += scores[-1].logprob is not None  # the first needs no forward
        if not self.scoring.left:
            self.scoring = None
            if not self.tokens_left:
                self._end_prompt()
                self.ended = "length"
        self._scores += len(scores)
        return Scored(self.request_id, scores)

    def run_chunk(self) -> Tensor:
        """Run the next chunk of the prompt. Returns the token after it, int64 [1, 1]."""
        assert self.prefill is not None
        self.scratch_rows = max(self.scratch_rows, self.prefill.next_chunk.padding)
        bonus = self.prefill.run_chunk()
        self.stats.prefill_chunks += 1
        self.rows = max(self.reused, len(self.request.prompt) - self.prefill.left)
        return bonus

    def skip_to(self, rows: int) -> None:
        """Continue the prompt after its first `rows` rows, which were copied into its sequence."""
        assert self.prefill is not None
        self.reused = self.rows = rows
        self.prefill.skip(rows)

    def begin(self, token: int, logprobs: Sequence[TokenLogprobs] = ()) -> Tokens:
        """Add the first token, which the prompt's last chunk gives."""
        self._end_prompt()
        return Tokens(self.request_id, self._append([token]), logprobs=self._requested(logprobs))

    def _end_prompt(self) -> None:
        self.prefill = None
        self._first_token = time.perf_counter()
        self.stats.prefill_seconds = self._first_token - self._started

    def add_round(self, shape: Shape, outcome: Outcome, *, drafter_observed: bool = True) -> Tokens:
        """Add the outcome of a round; `drafter_observed` says whether the drafter saw its rows.

        Returns the tokens that count: none after the request's end.
        """
        max_shape = self.request.max_shape
        chain_len = shape.depth if max_shape is None else min(shape.depth, max_shape.depth)
        drafted = chain_len if outcome.drafted is None else outcome.drafted
        if not drafter_observed and self.first_unobserved_row is None:
            self.first_unobserved_row = self.position
        self.rows = self.position + 1
        tokens = self._append(outcome.tokens[: outcome.accepted + 1])
        if shape.is_chain:
            self.rows += len(tokens) - 1
        else:  # the path stays in the slots of its nodes until the next round moves it
            self.scratch_rows = max(self.scratch_rows, shape.nodes)
        self.stats.add_round(
            drafted, outcome.accepted, len(tokens), outcome.ranks, outcome.offered_ranks
        )
        if self.request.shape is None:
            self.stats.rounds_by_shape[shape.label] += 1
        self.stats.decode_seconds = time.perf_counter() - self._first_token
        accepted = min(outcome.accepted, len(tokens))
        ranks = outcome.ranks[1 : accepted + 1]
        logprobs = self._requested(outcome.logprobs[: len(tokens)])
        return Tokens(self.request_id, tokens, drafted, accepted, ranks, logprobs)

    def unsent(self, event: Tokens | Scored) -> Tokens | Scored | None:
        """Return what of its last event was in none before it ran again, None for nothing."""
        if isinstance(event, Scored):
            sent = self._sent_scores - (self._scores - len(event.logprobs))
            left = event.logprobs[max(sent, 0) :]
            return replace(event, logprobs=left) if left else None
        sent = self._sent_tokens - (len(self.output) - len(event.tokens))
        if sent <= 0:
            return event
        if sent >= len(event.tokens):
            return None
        return replace(
            event,
            tokens=event.tokens[sent:],
            accepted=max(event.accepted - sent, 0),
            ranks=event.ranks[sent:],
            logprobs=event.logprobs[sent:],
        )

    def contents(self, rows: int | None = None) -> CacheContents:
        """Return what its sequence holds, or will hold with `rows` rows of its prompt."""
        placed = self.request.placed
        text = [*placed.keys, *self.output]
        rows = self.rows if rows is None else rows
        return CacheContents(
            tokens=text[: rows + 1],
            prompt_tokens=len(self.request.prompt),
            reused=self.reused,
            length=len(text) if self.output else rows,
            scratch_rows=self.scratch_rows,
            images=placed.spans,
            drafter_rows=self._drafter_rows(rows),
            salt=self.request.cache_salt,
        )

    def _drafter_rows(self, rows: int) -> int:
        if self.request.is_plain:
            return 0
        return rows if self.first_unobserved_row is None else self.first_unobserved_row

    def finished(self, reason: Reason) -> Finished:
        """Return its last event."""
        times = None
        if self.sequence is not None:
            ended = time.perf_counter()
            times = RequestTimes(self.sequence, self._started, self._first_token, ended)
        return Finished(self.request_id, reason, self.reused, self.stats, times)

    def _requested(self, logprobs: Sequence[TokenLogprobs]) -> list[TokenLogprobs]:
        """Return as many log probabilities a token as it requested, which may be none."""
        num_logprobs = self.request.sampling.logprobs
        return [] if num_logprobs is None else [token.first(num_logprobs) for token in logprobs]

    def _append(self, tokens: Sequence[int]) -> list[int]:
        sent = max(self._sent_tokens - len(self.output), 0)
        again, new = tokens[:sent], tokens[sent : self.tokens_left]
        if self.request.constraint is not None:
            for token in again:
                self.request.constraint.advance(token)
        new, stopped = self.request.limits.cut(new)  # callbacks see each token once
        tokens = [*again, *new]
        self.output += tokens
        if stopped:
            self.ended = "stop"
        elif not self.tokens_left:
            self.ended = "length"
        return tokens
