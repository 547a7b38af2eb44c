"""A process that takes room for a moment; its imports take a tenth of a second."""

import time
from multiprocessing.queues import Queue

from eagle_aot.export.lowering.side_by_side.room import Room


def hold(room: Room, place: int, need: int, spans: "Queue[tuple[int, float, float]]") -> None:
    """Tell of the need, and of when the room was had, by `time.monotonic`."""
    with room.taken(place, need):
        began = time.monotonic()
        time.sleep(0.05)
        spans.put((need, began, time.monotonic()))
