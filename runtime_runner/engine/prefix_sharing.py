"""Prompts that begin as the text of another sequence does: its rows are copied, not run again.

Whoever has run most of a prompt is copied from, be it free, running or in its own prompt; and whose
prompt is ahead on the same way goes on in place of those behind it, who then need not run the rows.
"""

from collections.abc import Sequence

from eagle_aot.runtime_runner.engine.cache_slots import CacheSlots, PrefixQuery
from eagle_aot.runtime_runner.engine.running_request import RunningRequest
from eagle_aot.runtime_runner.engine.schedule import Schedule


class PrefixSharing:
    """What texts that have a sequence, and are in their prompts, take over from one another."""

    def __init__(self, schedule: Schedule, sequences: CacheSlots) -> None:
        self._schedule, self._sequences = schedule, sequences

    def take_over(self, text: RunningRequest) -> None:
        """Copy what another sequence has run of the text's prompt, if that is worth it."""
        sequence = text.sequence
        if not self._may(text) or sequence is None:
            return
        source, rows = self._sequences.richest(sequence, self._wanted(text))
        if rows - text.rows < self._sequences.copy_least:
            return
        self._sequences.copy(source, sequence, rows)
        text.take_over(rows)

    def ahead(self, text: RunningRequest, prompts: Sequence[RunningRequest]) -> RunningRequest:
        """Whose chunk of all prompts is to be run when it is the text's turn: its own, unless
        another's spares it more rows than it waits for in vain."""
        further = [other for other in prompts if other.rows > text.rows]
        if text.sequence is None or not further or not self._may(text):
            return text
        there = self._sequences.richest(text.sequence, self._wanted(text))[1]
        found = next((o for o in further if self._leads(o, text, max(there, text.rows))), None)
        return text if found is None else self.ahead(found, prompts)

    def _leads(self, other: RunningRequest, text: RunningRequest, rows: int) -> bool:
        """Whether the other's next chunk is worth waiting for: `rows` are there without."""
        assert other.run is not None and other.sequence is not None
        chunk = other.run.next_chunk
        then = self._sequences.with_text(other.sequence, other.left(chunk.stop))
        spared = self._sequences.shared(self._wanted(text), then) - rows
        return spared >= self._sequences.copy_least and 2 * spared >= len(chunk)

    def _may(self, text: RunningRequest) -> bool:
        """Not while its prompt is scored, which would overwrite what was copied."""
        return text.request.reuse and self._schedule.target.copies and text.scoring is None

    def _wanted(self, text: RunningRequest) -> PrefixQuery:
        return PrefixQuery.by(text.request, self._schedule.drafter)
