"""What heads that read taps, or have a vocabulary of their own, may all have meant otherwise."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TapReading:
    """Base: one way to run a head.

    `remedy` says how to make it the chosen one. `target_ids` int64 [Vd] are target ids, those
    outside the vocabulary being never right. `misaligned` is the control: features of other
    positions, which tell a head nothing.
    """

    name: str
    remedy: str | None
    tap_layers: tuple[int, ...]
    target_ids: Tensor
    misaligned: bool = False


R = TypeVar("R", bound=TapReading)


def control_of(reading: R) -> R:
    """The same with features that tell the head nothing."""
    return replace(reading, name=f"{reading.name}, features of other positions", misaligned=True)


def other_taps(chosen: R, num_layers: int) -> Iterator[R]:
    """Each tap one boundary lower and higher, and all of them."""
    count = len(chosen.tap_layers)
    moves = [[int(i == j) for j in range(count)] for i in range(count)]
    for move in [*moves, [1] * count] if count > 1 else moves:
        for sign in (-1, 1):
            taps = [tap + sign * step for tap, step in zip(chosen.tap_layers, move, strict=True)]
            if taps == sorted(set(taps)) and 0 <= taps[0] <= taps[-1] <= num_layers:
                named = ",".join(map(str, taps))
                yield replace(
                    chosen,
                    name=f"taps {named}",
                    remedy=f"--tap-layers {named}",
                    tap_layers=tuple(taps),
                )


def other_vocabularies(chosen: R, vocab_size: int) -> Iterator[R]:
    """`d2t` as ids rather than offsets, and not applied at all; both are what it is without one."""
    ids = chosen.target_ids
    plain = torch.arange(len(ids), device=ids.device)
    if torch.equal(ids, plain):
        return
    yield replace(
        chosen,
        name="d2t as ids",
        remedy="d2t holds target ids: store offsets, each id less its index",
        target_ids=ids - plain,
    )
    if len(ids) < vocab_size:
        remedy = f"the draft vocabulary is the first {len(ids)} ids: store zeros in d2t, with a t2d"
        yield replace(chosen, name="d2t not applied", remedy=remedy, target_ids=plain)
