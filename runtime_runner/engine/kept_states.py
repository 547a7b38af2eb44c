"""The recurrent states that are kept of positions of texts, so that other texts continue there.

Rows of attention are kept one by one, and a text may continue after any of them. A state is that of
one position. So those at ends of prompt chunks are kept, beside each sequence and as long as its
rows: the last one, and others with wide gaps between them.
"""

from eagle_aot.artifact.methods import KEPT_STATES
from eagle_aot.runtime_runner.decode.target import Target


class KeptStates:
    """The positions of up to `KEPT_STATES` kept states of each of a target's sequences, and in
    which of its places each is."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._places: dict[int, dict[int, int]] = {}

    def positions(self, sequence: int) -> tuple[int, ...] | None:
        """Return where texts may continue after rows of a sequence, in ascending order; None if
        after any row."""
        if not self._target.has_states:
            return None
        return tuple(sorted(self._places.get(sequence, {})))

    def keep(self, sequence: int, position: int) -> None:
        """Keep the state of a sequence, which has run a prompt up to a position."""
        if not self._target.has_states:
            return
        places = self._places.setdefault(sequence, {})
        free = {*range(KEPT_STATES)} - {*places.values()}
        place = min(free) if free else places.pop(least_useful([*places], position))
        self._target.keep_state(sequence, place)
        places[position] = place

    def restore(self, source: int, position: int, sequence: int) -> None:
        """Continue a sequence after a position that is kept of a `source`, which may be itself.
        What it kept of other texts is forgotten."""
        if not self._target.has_states:
            return
        places = self._places.get(source, {})
        if position:
            self._target.restore_state(source, places[position], sequence)
        if source == sequence:
            self._places[source] = {p: at for p, at in places.items() if p <= position}
        else:
            self._places[sequence] = {}
            self.keep(sequence, position)


def least_useful(positions: list[int], last: int) -> int:
    """Return the position before `last` without which the widest gap grows least: that with the
    nearest neighbours."""
    ordered = [0, *sorted(positions), last]
    gaps = [after - before for before, after in zip(ordered, ordered[2:], strict=False)]
    return ordered[1 + gaps.index(min(gaps))]
