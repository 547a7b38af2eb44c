"""Chains from every anchor at once, against chains drafted one after another through the cache."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.export import load_draft
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.self_test import readings_of
from eagle_aot.export.self_test.text import TargetText
from support.heads.files import HeadShape, write_speculators

STEPS = 3
SHAPES = [
    HeadShape(),
    HeadShape(num_layers=2, qk_norm=True, biases=True),
    HeadShape(norm_output=True, norm_before_residual=True, fc_norm=True),
    HeadShape(norm_before_fc=True, kv_heads=4),
]


def random_text(shape: HeadShape, length: int = 14, start: int = 5) -> TargetText:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(shape.vocab, (1, length), generator=generator)
    streams = torch.randn(1, length - 1, 5, shape.target_hidden, generator=generator)
    return TargetText(tokens, start, tuple(range(5)), streams)


@torch.no_grad()
def drafted(draft: Eagle3Draft, text: TargetText, anchor: int) -> list[Tensor]:
    """The logits [Vd] of a chain from one anchor, as long as the text is."""
    draft.reset_cache()
    feature = draft.fuse(text.taps(draft.config.tap_layers))[:, : anchor + 1]
    tokens, positions = text.tokens[:, 1 : anchor + 2], torch.arange(anchor + 1)
    found = []
    for step in range(STEPS):
        logits, recurrent = draft.forward_cached(draft.embed(tokens), feature, positions)
        found.append(logits[0, -1])
        if anchor + step + 3 >= text.tokens.shape[1]:
            break
        tokens, feature = text.tokens[:, [anchor + step + 2]], recurrent[:, -1:]
        positions = torch.tensor([anchor + step + 1])
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_chain_is_what_drafting_gives(shape: HeadShape, tmp_path: Path) -> None:
    draft, text = load_draft(write_speculators(tmp_path, shape), max_seq_len=32), random_text(shape)
    chosen, *_ = readings_of(draft, 4)
    steps = list(chosen.chain_logits(text, STEPS))
    for row, anchor in enumerate(range(text.first_anchor, text.slots)):
        for step, logits in enumerate(drafted(draft, text, anchor)):
            torch.testing.assert_close(steps[step][row], logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("flag", ["norm_output", "norm_before_residual"])
def test_a_reading_is_the_head_with_that_option(flag: str, tmp_path: Path) -> None:
    """The same files, loaded with the key the other way."""
    one = load_draft(write_speculators(tmp_path / "a", HeadShape()))
    other = load_draft(write_speculators(tmp_path / "b", replace(HeadShape(), **{flag: True})))
    text = random_text(HeadShape())
    reading = next(r for r in readings_of(one, 4) if getattr(r.wiring, flag))
    chosen, *_ = readings_of(other, 4)
    for ours, theirs in zip(
        reading.chain_logits(text, STEPS), chosen.chain_logits(text, STEPS), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_control_reads_other_positions(tmp_path: Path) -> None:
    draft, text = load_draft(write_speculators(tmp_path, HeadShape())), random_text(HeadShape())
    chosen, *_ = readings_of(draft, 4)
    right, wrong = (next(r.chain_logits(text, 1)) for r in (chosen, chosen.control()))
    assert not torch.allclose(right, wrong)


def test_readings_stay_within_the_target(tmp_path: Path) -> None:
    draft = load_draft(write_speculators(tmp_path, HeadShape(), taps=[0, 1, 4]))
    readings = list(readings_of(draft, 4))
    taps = {r.tap_layers for r in readings} - {(0, 1, 4)}
    assert taps == {(0, 2, 4), (0, 1, 3)}
    names = [r.name for r in readings]
    assert len(names) == len(set(names))
    assert {"d2t as ids", "d2t not applied", "halves swapped"} < set(names)


def test_a_full_vocabulary_has_one_map(tmp_path: Path) -> None:
    draft = load_draft(write_speculators(tmp_path, HeadShape()))
    draft.target_ids = torch.arange(len(draft.target_ids))
    assert not [r for r in readings_of(draft, 4) if "d2t" in r.name]
