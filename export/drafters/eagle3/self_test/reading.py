"""The ways in which a head's files might be meant."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle_aot.export.drafters.eagle3.config import Wiring
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading:
    """One way to run a head.

    `remedy` says how to make it the chosen one. `target_ids` int64 [Vd] are target ids, those
    outside the vocabulary being never right. `misaligned` is the control: features of other
    positions, which tell a head nothing.
    """

    name: str
    remedy: str | None
    tap_layers: tuple[int, ...]
    target_ids: Tensor
    norm_output: bool
    norm_before_residual: bool
    halves_swapped: bool = False
    misaligned: bool = False

    @property
    def wiring(self) -> Wiring:
        """How it connects the head's parts."""
        return Wiring(
            norm_output=self.norm_output,
            norm_before_residual=self.norm_before_residual,
            halves_swapped=self.halves_swapped,
        )

    def control(self) -> "Reading":
        """The same with features that tell the head nothing."""
        return replace(self, name=f"{self.name}, features of other positions", misaligned=True)


def chosen_reading(draft: Eagle3Draft) -> Reading:
    """The one that an export takes."""
    config = draft.config
    return Reading(
        name="as resolved",
        remedy=None,
        tap_layers=config.tap_layers,
        target_ids=draft.target_ids,
        norm_output=config.norm_output,
        norm_before_residual=config.norm_before_residual,
    )


def other_readings(draft: Eagle3Draft, num_layers: int) -> Iterator[Reading]:
    """Every other one that a head's files could mean, one thing changed in each."""
    chosen = chosen_reading(draft)
    yield from _taps(chosen, num_layers)
    yield from _vocabularies(chosen, draft.config.vocab_size)
    if draft.config.final_norm:
        post = not chosen.norm_output
        side = "after" if post else "before"
        remedy = f'"return_hidden_post_norm": {_json(post)} in the head\'s config.json'
        name = f"feedback {side} the final norm"
        yield replace(chosen, name=name, remedy=remedy, norm_output=post)
    yield replace(
        chosen,
        name="halves swapped",
        remedy="swap the column halves of the first layer's q_proj, k_proj and v_proj",
        halves_swapped=True,
    )
    early = not chosen.norm_before_residual
    yield replace(
        chosen,
        name=f"residual {'after' if early else 'before'} hidden_norm",
        remedy=f'"norm_before_residual": {_json(early)} in the head\'s config.json',
        norm_before_residual=early,
    )


def _taps(chosen: Reading, num_layers: int) -> Iterator[Reading]:
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


def _vocabularies(chosen: Reading, vocab_size: int) -> Iterator[Reading]:
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


def _json(flag: bool) -> str:
    return "true" if flag else "false"
