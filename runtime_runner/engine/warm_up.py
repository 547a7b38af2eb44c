"""Makes and records all rounds that may be needed, before the first request."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.common.memory import free_bytes, shortage, taken_bytes
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine.rounds import Rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """What a warm-up did: it ran `rounds` rounds, `recorded` of them as recordings, and took
    `bytes` of GPU memory, None on a CPU."""

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
    rounds: Rounds, requests: int, shapes: Iterable[Shape], *, observed: bool = False
) -> WarmUp:
    """Build and run all rounds that up to `requests` requests with these shapes need.

    No request may run at the same time. `observed` is as in `Rounds.get_round`. Raises
    UnsupportedError for a round that does not fit the memory.
    """
    device = rounds.batch.bonus.device
    if device.type == "cuda":
        torch.cuda.empty_cache()  # as recording does, which would count as memory that it frees
    free, started = free_bytes(device), time.perf_counter()
    # The largest first: recordings share their memory.
    requested = {size: s for s in shapes for size in rounds.shapes(requests, [s])}
    sizes = sorted(requested, key=rows_of, reverse=True)
    recorded = sum(run_once(rounds, size[0], requested[size], observed=observed) for size in sizes)
    return WarmUp(
        rounds=len(sizes),
        recorded=recorded,
        seconds=time.perf_counter() - started,
        bytes=taken_bytes(free, free_bytes(device)) if device.type == "cuda" else None,
    )


def rows_of(size: tuple[int, Shape]) -> tuple[int, int]:
    """Return how many rows a round verifies, and how many the head runs at a time, for its batch
    size and shape."""
    batch_size, shape = size
    return batch_size * (shape.nodes + 1), batch_size * shape.topk


def run_once(rounds: Rounds, batch_size: int, shape: Shape, *, observed: bool) -> bool:
    """Run a round once. Returns whether it is a recording."""
    try:
        round_ = rounds.get_round(batch_size, shape, observed=observed)
        with rounds.batch.idle():
            round_.run().tolist()
    except (RuntimeError, MemoryError) as error:
        if (line := shortage(error)) is None:
            raise
        raise UnsupportedError(
            f"warm-up: a round of {batch_size} sequences with "
            f"{rounds.fitting(batch_size, shape).nodes} drafts: {line}"
        ) from error
    return round_.run != round_.step
