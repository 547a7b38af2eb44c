"""Room that works take in turns, and the time that a queue of works takes in all."""

import heapq
import random
import threading
import time
from dataclasses import dataclass
from multiprocessing import get_context

import pytest

from eagle_aot.export.lowering.side_by_side.room import UNKNOWN, Room, may_begin
from support.holding import hold

CONTEXT = get_context("spawn")


@dataclass(frozen=True)
class Work:
    """What a work needs, for how long, and how long it takes until it says so."""

    need: int
    seconds: float
    before: float = 0.0


def simulated(works: list[Work], size: int, jobs: int) -> list[tuple[float, float]]:
    """When each of the works begins and ends that are taken from a queue by so many processes."""
    needs, running = [UNKNOWN] * len(works), [False] * len(works)
    spans = [(0.0, 0.0)] * len(works)
    events = [(works[at].before, at, False) for at in range(min(jobs, len(works)))]
    taken = len(events)
    heapq.heapify(events)
    while events:
        now, at, ends = heapq.heappop(events)
        needs[at], running[at] = (0 if ends else min(works[at].need, size)), False
        if ends and taken < len(works):
            heapq.heappush(events, (now + works[taken].before, taken, False))
            taken += 1
        for one, need in enumerate(needs):
            if need > 0 and not running[one] and may_begin(one, needs, running, size):
                running[one], spans[one] = True, (now, now + works[one].seconds)
                heapq.heappush(events, (spans[one][1], one, True))
    return spans


TARGET = [Work(2135, 166.4, 25), Work(2135, 265.6, 25)]
"""Of a target of 31B parameters, in hundredths of GiB and seconds as they were measured."""
HEADS = [Work(743, 62.8, 8), Work(640, 48.9, 8), Work(643, 50.1, 8), Work(620, 36.2, 8)]
ROWS = Work(276, 33.1, 5)


@pytest.mark.parametrize("jobs", [2, 3, 4, 7])
def test_what_is_small_is_done_beside_what_is_large(jobs: int) -> None:
    """Two that do not fit together, and others that do beside either: no time goes but theirs."""
    spans = simulated([*TARGET, *HEADS, ROWS], 2919, jobs)
    assert max(end for _, end in spans) == pytest.approx(25 + 166.4 + 265.6, abs=5)
    assert spans[1][0] == spans[0][1], "the second large one begins where the first ends"


def test_where_all_fit_none_waits() -> None:
    spans = simulated([*TARGET, *HEADS, ROWS], 7500, 7)
    assert [begin for begin, _ in spans] == [25.0] * 7, "when what stands before has said its need"
    assert max(end for _, end in spans) == pytest.approx(25 + 265.6)


def test_what_needs_most_waits_for_none_behind_it() -> None:
    """Small ones that would take each other's place for ever."""
    spans = simulated([Work(6, 10.0), Work(9, 10.0), *[Work(3, 7.0)] * 20], 10, 4)
    assert spans[1] == (10.0, 20.0)
    assert min(begin for begin, _ in spans[2:]) >= 20.0, "none of them leaves it room"


def test_all_have_their_turn_and_none_too_much() -> None:
    dice = random.Random(5)
    for _ in range(300):
        size, jobs = dice.randint(1, 30), dice.randint(1, 6)
        works = [
            Work(dice.randint(1, 40), dice.randint(1, 9), dice.randint(0, 9))
            for _ in range(dice.randint(1, 12))
        ]
        spans = simulated(works, size, jobs)
        assert all(end > begin for begin, end in spans), "each has begun"
        for now, _ in spans:
            held = [w.need for w, (b, e) in zip(works, spans, strict=True) if b <= now < e]
            assert sum(held) <= size or len(held) == 1


def test_who_leaves_without_a_word_holds_up_nobody() -> None:
    room = Room(CONTEXT, 10, 2)
    began: list[float] = []

    def second() -> None:
        with room.taken(1, 4):
            began.append(time.monotonic())

    waiting = threading.Thread(target=second)
    waiting.start()
    time.sleep(0.05)
    assert not began, "the first has not said what it needs"
    left = time.monotonic()
    room.leave(0)
    waiting.join(10)
    assert began[0] >= left


def test_processes_share_what_there_is() -> None:
    needs = [6, 25, 6, 3]
    room, spans = Room(CONTEXT, 10, len(needs)), CONTEXT.Queue()
    holding = [
        CONTEXT.Process(target=hold, args=(room, place, need, spans))
        for place, need in enumerate(needs)
    ]
    for process in holding:
        process.start()
    held = [spans.get(timeout=60) for _ in needs]
    for process in holding:
        process.join(60)
    for _, now, _ in held:
        at_once = [need for need, began, ended in held if began <= now < ended]
        assert sum(at_once) <= 10 or at_once == [25], "what never fits runs alone"
