"""Shares the rows of common prefixes between requests that run at the same time.

A prompt that begins like the text of another sequence copies that sequence's rows instead of
running them. The source may be free, running or still in its own prompt. Where another prompt is
ahead with the same beginning, its chunk runs first, so that the others can copy it.
"""

from collections.abc import Sequence

from eagle_aot.runtime_runner.engine.cache_slots import CacheSlots, PrefixQuery
from eagle_aot.runtime_runner.engine.running_request import RunningRequest
from eagle_aot.runtime_runner.engine.schedule import Schedule


class PrefixSharing:
    """Copies rows between the cache slots of requests that are in their prompts."""

    def __init__(self, schedule: Schedule, slots: CacheSlots) -> None:
        self._schedule, self._slots = schedule, slots

    def copy_prefix(self, request: RunningRequest) -> None:
        """Copy what another slot holds of the request's prompt, if enough rows are gained."""
        sequence = request.sequence
        if not self._may_copy(request) or sequence is None:
            return
        source, rows = self._slots.longest_match(sequence, self._query(request))
        if rows - request.rows < self._slots.copy_least:
            return
        self._slots.copy(source, sequence, rows)
        request.skip_to(rows)

    def first_to_run(
        self, request: RunningRequest, prompts: Sequence[RunningRequest]
    ) -> RunningRequest:
        """Return the prompt whose chunk should run when it is the request's turn: its own, unless
        another one's chunk saves it more rows than the wait costs."""
        ahead = [other for other in prompts if other.rows > request.rows]
        if request.sequence is None or not ahead or not self._may_copy(request):
            return request
        matched = self._slots.longest_match(request.sequence, self._query(request))[1]
        rows = max(matched, request.rows)
        leader = next((other for other in ahead if self._leads(other, request, rows)), None)
        return request if leader is None else self.first_to_run(leader, prompts)

    def _leads(self, other: RunningRequest, request: RunningRequest, rows: int) -> bool:
        """Whether the other's next chunk is worth waiting for; `rows` are available without it."""
        assert other.prefill is not None and other.sequence is not None
        chunk = other.prefill.next_chunk
        later = self._slots.after(other.sequence, other.contents(chunk.stop))
        saved = self._slots.reusable(self._query(request), later) - rows
        return saved >= self._slots.copy_least and 2 * saved >= len(chunk)

    def _may_copy(self, request: RunningRequest) -> bool:
        """Not while the prompt is scored, which would overwrite what was copied."""
        copies = self._schedule.target.copies
        return request.request.reuse and copies and request.scoring is None

    def _query(self, request: RunningRequest) -> PrefixQuery:
        return PrefixQuery.of(request.request, self._schedule.drafter)
