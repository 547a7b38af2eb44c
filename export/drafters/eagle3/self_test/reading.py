"""The ways in which a head's files might be meant."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from eagle_aot.export.drafters.eagle3.config import Wiring
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.self_test.readings import TapReading, other_taps, other_vocabularies


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading(TapReading):
    """One way to run an EAGLE-3 head."""

    norm_output: bool
    norm_before_residual: bool
    halves_swapped: bool = False

    @property
    def wiring(self) -> Wiring:
        """How it connects the head's parts."""
        return Wiring(
            norm_output=self.norm_output,
            norm_before_residual=self.norm_before_residual,
            halves_swapped=self.halves_swapped,
        )


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
    yield from other_taps(chosen, num_layers)
    yield from other_vocabularies(chosen, draft.config.vocab_size)
    if draft.config.final_norm and draft.config.mask_token_id is None:
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


def _json(flag: bool) -> str:
    return "true" if flag else "false"
