"""All rounds that may be needed, made before anybody waits for them."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from eagle_aot.common.device_memory import free_bytes
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.common.memory import shortage
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine.rounds import Rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """Rounds that were played, and how many of them are recordings; `bytes` of the GPU are less
    free since, None where the device is the host."""

    rounds: int
    recorded: int
    seconds: float
    bytes: int | None

    def __str__(self) -> str:
        taken = "" if self.bytes is None else f", {self.bytes / 1e9:.2f} GB of the GPU"
        return (
            f"warm-up: {self.rounds} rounds in {self.seconds:.1f} s, "
            f"{self.recorded or 'none'} of them recorded{taken}"
        )


def warm_up(
    rounds: Rounds,
    texts: int,
    wanted: Iterable[Shape],
    *,
    observed: bool = False,
    foreseen: bool = False,
) -> WarmUp:
    """Make and play, while nobody runs, what up to so many texts with these drafts need; `observed`
    and `foreseen` are as `Rounds.of` takes them.

    Raises UnsupportedError for a round that there is too little memory for.
    """
    device = rounds.running.bonus.device
    free, started = free_bytes(device), time.perf_counter()
    # The largest first: recordings share their memory.
    shapes = sorted(rounds.shapes(texts, wanted), key=rows_of, reverse=True)
    recorded = sum(
        play_once(rounds, *shape, observed=observed, foreseen=foreseen) for shape in shapes
    )
    left = free_bytes(device)
    return WarmUp(
        rounds=len(shapes),
        recorded=recorded,
        seconds=time.perf_counter() - started,
        bytes=free - left if free and left and device.type == "cuda" else None,
    )


def rows_of(round_shape: tuple[int, Shape]) -> tuple[int, int]:
    """Rows that are verified, and those of the head at a time."""
    places, shape = round_shape
    return places * (shape.nodes + 1), places * shape.topk


def play_once(rounds: Rounds, places: int, shape: Shape, *, observed: bool, foreseen: bool) -> bool:
    """Whether the round is a recording."""
    try:
        round_ = rounds.of(places, shape, observed=observed, foreseen=foreseen)
        with rounds.running.idle():
            round_.play().tolist()
    except (RuntimeError, MemoryError) as error:
        if (line := shortage(error)) is None:
            raise
        what = f"a round of {places} sequences with {shape.nodes} drafts"
        raise UnsupportedError(f"warm-up: {what}: {line}") from error
    return round_.play != round_.step
