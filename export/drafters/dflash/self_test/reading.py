"""The ways in which a DFlash head's files might be meant."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from eagle_aot.export.drafters.dflash.model import DFlashDraft
from eagle_aot.export.drafters.self_test.readings import TapReading, other_taps, other_vocabularies
from eagle_aot.targets import TapTarget
from eagle_aot.targets.gemma4 import Gemma4Target


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading(TapReading):
    """One way to run a head. `shifted` rows say what stands behind them, as other heads' do."""

    embedding_scale: float
    both_ways: bool
    shifted: bool = False


def chosen_reading(draft: DFlashDraft) -> Reading:
    """The one that an export takes."""
    config = draft.config
    return Reading(
        name="as resolved",
        remedy=None,
        tap_layers=config.tap_layers,
        target_ids=draft.target_ids,
        embedding_scale=config.embedding_scale,
        both_ways=True,
    )


def other_readings(draft: DFlashDraft, target: TapTarget) -> Iterator[Reading]:
    """Every other one that a head's files could mean, one thing changed in each."""
    chosen = chosen_reading(draft)
    yield from other_taps(chosen, target.num_hidden_layers)
    yield from other_vocabularies(chosen, draft.config.vocab_size)
    if isinstance(target, Gemma4Target):
        scale = 1.0 if chosen.embedding_scale != 1.0 else target.hidden_size**0.5
        yield replace(
            chosen,
            name=f"embeddings times {scale:g}",
            remedy=f'"dflash_config": {{"input_embedding_scale": {scale!r}}} in its config.json',
            embedding_scale=scale,
        )
    remedy = "no option reads it so: the files were made for another program"
    yield replace(chosen, name="a causal block", remedy=remedy, both_ways=False)
    yield replace(chosen, name="rows about the next token", remedy=remedy, shifted=True)
