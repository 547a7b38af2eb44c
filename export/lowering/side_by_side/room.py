"""Room that works of several processes take in the order of a queue, and small ones fill up."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import SpawnContext

UNKNOWN = -1
"""What a work needs before it says so."""


class Room:
    """A number of bytes, which works of known places in a queue share out as `may_begin` says."""

    def __init__(self, context: SpawnContext, size: int, works: int) -> None:
        """To be handed to processes of the context as they are spawned."""
        self._size = size
        self._changed = context.Condition()
        self._needs = context.Array("q", [UNKNOWN] * works, lock=False)  # the condition guards both
        self._running = context.Array("b", works, lock=False)

    @contextmanager
    def taken(self, place: int, need: int) -> Iterator[None]:
        """Wait for the room that the work at that place of the queue needs, and keep it; who needs
        more than there is gets all."""
        with self._changed:
            self._needs[place] = min(need, self._size)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: may_begin(place, self._needs[:], self._running[:], self._size)
            )
            self._running[place] = True
        try:
            yield
        finally:
            self.leave(place)

    def leave(self, place: int) -> None:
        """Let nobody wait any more for what the work there needs, or for it to say so."""
        with self._changed:
            self._needs[place], self._running[place] = 0, False
            self._changed.notify_all()


def may_begin(place: int, needs: Sequence[int], running: Sequence[int], size: int) -> bool:
    """Whether the work at `place` of a queue may take its room now, of `size` in all.

    It waits until all before it have said what they need. From then on it takes what is free, if
    that leaves room for the first that waits beside all behind that one: small works fill what
    large ones leave, and none waits for one behind it that began later. The first that waits
    begins where nothing runs, so something always does.

    `needs` are those of works that run or wait, 0 of those that have ended.
    """
    if UNKNOWN in needs[:place]:
        return False
    waiting = (at for at in range(place) if needs[at] and not running[at])
    first = next(waiting, place)
    held = [need if runs else 0 for need, runs in zip(needs, running, strict=True)]
    behind = sum(held[first + 1 :]) + (needs[place] if place > first else 0)
    return sum(held) + needs[place] <= size and behind + needs[first] <= size
