"""Which forward the engine runs next: a round or a prompt's chunk, and which prompt's.

A prompt that begins like the text of another sequence copies that sequence's rows instead of
running them. The source may be free, running or still in its own prompt.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from eagle_aot.runtime_runner.engine.running_request import RunningRequest
from eagle_aot.runtime_runner.engine.schedule import Schedule
from eagle_aot.runtime_runner.engine.sequence_pool import PrefixQuery, SequencePool


class PromptShare:
    """Decides whether a step runs a prompt chunk or a round.

    It keeps an account in seconds: rounds earn time for prompts, and chunks spend it. The first
    chunk is on credit, so that a prompt of one chunk starts at once.
    """

    def __init__(self, share: float) -> None:
        """Give prompts the `share` of the time, between 0 and 1.

        At 0.5, a running request takes twice its time while prompts run.
        """
        self._earned_by_second = share / (1 - share)
        self._account = 0.0

    @property
    def due(self) -> bool:
        """Whether the next step should run a chunk."""
        return self._account >= 0

    def add_chunk(self, seconds: float) -> None:
        """Spend the time of a chunk that running requests waited for."""
        self._account -= seconds

    def add_round(self, seconds: float) -> None:
        """Earn from a round that prompts waited for."""
        self._account += seconds * self._earned_by_second

    def reset(self) -> None:
        """Clear the account: prompts and running requests no longer compete."""
        self._account = 0.0


class PromptTurns:
    """Chooses which prompt runs its next chunk.

    It is the shortest remaining prompt, and every second time the oldest one: a short prompt need
    not wait for a long one, and a long one still advances.
    """

    def __init__(self) -> None:
        self._oldest_next = False

    def next(self, requests: Sequence[RunningRequest]) -> RunningRequest:
        """Choose from at least one request, in the order in which they came."""
        self._oldest_next = not self._oldest_next and len(requests) > 1
        if not self._oldest_next:
            return requests[0]
        return min(requests, key=lambda request: request.prompt_left)


class Launches:
    """Time of an engine's forwards in seconds, each from its launch until its tokens are read.

    `rounds` counts the rounds, `preemptions` how often a request gave up its memory to run again. A
    forward that fails does not count.
    """

    def __init__(self) -> None:
        self.rounds = self.preemptions = 0
        self.rounds_seconds = self.prompts_seconds = 0.0

    @contextmanager
    def round(self) -> Iterator[None]:
        """Time a round of all running requests."""
        started = time.perf_counter()
        yield
        self.rounds += 1
        self.rounds_seconds += time.perf_counter() - started

    @contextmanager
    def chunk(self) -> Iterator[None]:
        """Time a chunk of a prompt."""
        started = time.perf_counter()
        yield
        self.prompts_seconds += time.perf_counter() - started


class PrefixSharing:
    """Copies rows of common prefixes between sequences, to requests that are in their prompts.

    If another prompt is ahead with the same beginning, its chunk runs first, so that the others can
    copy it.
    """

    def __init__(self, schedule: Schedule, pool: SequencePool) -> None:
        self._schedule, self._pool = schedule, pool

    def copy_prefix(self, request: RunningRequest) -> None:
        """Copy what another sequence holds of the request's prompt, if enough rows are gained."""
        sequence = request.sequence
        if not self._may_copy(request) or sequence is None:
            return
        source, rows = self._pool.longest_match(sequence, self._query(request))
        if rows - request.rows < self._pool.copy_least:
            return
        self._pool.copy(source, sequence, rows)
        request.skip_to(rows)

    def first_to_run(
        self, request: RunningRequest, prompts: Sequence[RunningRequest]
    ) -> RunningRequest:
        """Return the prompt whose chunk should run when it is the request's turn: its own, unless
        another one's chunk saves it more rows than the wait costs."""
        ahead = [other for other in prompts if other.rows > request.rows]
        if request.sequence is None or not ahead or not self._may_copy(request):
            return request
        matched = self._pool.longest_match(request.sequence, self._query(request))[1]
        rows = max(matched, request.rows)
        leader = next((other for other in ahead if self._leads(other, request, rows)), None)
        return request if leader is None else self.first_to_run(leader, prompts)

    def _leads(self, other: RunningRequest, request: RunningRequest, rows: int) -> bool:
        """Whether the other's next chunk is worth waiting for; `rows` can be copied without it."""
        assert other.prefill is not None and other.sequence is not None
        chunk = other.prefill.next_chunk
        state = None if chunk.few_rows else chunk.stop
        later = self._pool.after(other.sequence, other.contents(chunk.stop), state)
        saved = self._pool.reusable(self._query(request), later) - rows
        return saved >= self._pool.copy_least and 2 * saved >= len(chunk)

    def _may_copy(self, request: RunningRequest) -> bool:
        """Whether rows may be copied to a request. Scoring its prompt would overwrite them."""
        can_copy_rows = self._schedule.target.can_copy_rows
        return request.request.reuse and can_copy_rows and request.scoring is None

    def _query(self, request: RunningRequest) -> PrefixQuery:
        return PrefixQuery.of(request.request, self._schedule.drafter)
