"""P-EAGLE heads: reading their files, drafting with masks, and errors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, EagleError, UnsupportedError
from eagle_aot.export.drafters.description import report
from eagle_aot.export.drafters.eagle3 import kind as eagle3
from eagle_aot.export.drafters.eagle3.model import ParallelDraft
from eagle_aot.export.drafters.eagle3.self_test import readings_of
from eagle_aot.export.drafters.peagle import kind
from eagle_aot.export.drafters.registry import HEADS, kind_of_checkpoint
from eagle_aot.export.loading.quantise import quantise_draft
from eagle_aot.export.self_test.text import TargetText
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.step import chain_step
from support.checkpoint_edits import edit_tensors
from support.gemma_oracle import VOCAB
from support.heads.files import HeadShape, Tensors
from support.heads.peagle import MASK_TOKEN, peagle_tensors, write_flat_peagle, write_peagle
from support.heads.reference import ReferenceHead

SHAPES = [
    HeadShape(vocab=VOCAB, num_layers=2, biases=True),
    HeadShape(vocab=VOCAB, fc_norm=True, norm_before_residual=True, qk_norm=True),
]
COMMITTED, MASKS = 9, 6


def loaded(directory: Path, target: TapTarget) -> ParallelDraft:
    caches = CacheSpec(64, torch.float32)
    draft, facts = kind.load(Checkpoint(directory), target, torch.float32, caches, (0, 1, 3))
    assert isinstance(draft, ParallelDraft) and facts["head"]["mask_token_id"] == MASK_TOKEN
    return draft


def text_of(shape: HeadShape) -> TargetText:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(shape.vocab, (1, 14), generator=generator)
    streams = torch.randn(1, 13, 5, shape.target_hidden, generator=generator)
    return TargetText(tokens, 5, tuple(range(5)), streams)


@torch.no_grad()
def drafted(draft: ParallelDraft, text: TargetText, committed: int = COMMITTED) -> Tensor:
    """Return logits [1 + MASKS, Vd] of the last committed slot, and of masks in one forward."""
    features = draft.fuse(text.taps(draft.tap_layers))[:, :committed]
    step = chain_step(torch.arange(committed))
    first, _ = draft.run(*draft.unmasked(text.tokens[:, 1 : committed + 1], features), step)
    masks = torch.full((1, MASKS), -1)
    anything = torch.full((1, MASKS, draft.hidden_size), 7.0)
    ahead = chain_step(torch.arange(committed, committed + MASKS))
    further, _ = draft.run(*draft.unmasked(masks, anything), ahead)
    return torch.cat((first[0, -1:], further[0]))


@pytest.mark.parametrize("write", [write_peagle, write_flat_peagle])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_drafts_of_masks_match_the_formulas(
    write: Any, shape: HeadShape, target: TapTarget, tmp_path: Path
) -> None:
    draft, text = loaded(write(tmp_path, shape), target), text_of(shape)
    tensors: Tensors = peagle_tensors(shape)
    slow = ReferenceHead(tensors, shape)
    taps = text.taps(draft.tap_layers)[0, :COMMITTED]
    mask = slow.fuse(tensors["mask_hidden"].view(1, -1)).expand(MASKS, -1)
    tokens = torch.cat((text.tokens[0, 1 : COMMITTED + 1], torch.full((MASKS,), MASK_TOKEN)))
    embedding = draft.embed_tokens.weight.detach()[tokens]
    wanted, _ = slow.run(embedding, torch.cat((slow.fuse(taps), mask)))
    assert (drafted(draft, text) - wanted[COMMITTED - 1 :]).abs().max() < 1e-4


def test_the_self_test_scores_what_drafting_gives(target: TapTarget, tmp_path: Path) -> None:
    draft, text = loaded(write_peagle(tmp_path, SHAPES[0]), target), text_of(SHAPES[0])
    readings = list(readings_of(draft, 4))
    steps = list(readings[0].chain_logits(text, 1 + MASKS))
    for row, anchor in enumerate(range(text.first_anchor, text.slots)):
        found = drafted(draft, text, anchor + 1)
        for step, logits in enumerate(steps):
            torch.testing.assert_close(logits[row], found[step], rtol=1e-4, atol=1e-4)
    names = [reading.name for reading in readings]
    assert "halves swapped" in names and not [name for name in names if "feedback" in name]


def test_a_head_in_int8_has_nearly_the_same_logits(target: TapTarget, tmp_path: Path) -> None:
    draft, text = loaded(write_peagle(tmp_path, SHAPES[0]), target), text_of(SHAPES[0])
    before, mask = drafted(draft, text), draft.mask_feature.clone()
    quantise_draft(draft, target, "int8")
    assert torch.equal(draft.mask_feature, mask)
    assert 0 < (drafted(draft, text) - before).abs().max() < 0.1


@pytest.mark.parametrize(
    ("changes", "tensors", "error", "message"),
    [
        ({"mask_token_id": None}, {}, CheckpointError, r"names one mask token .* none"),
        ({"pard_token": 3}, {}, CheckpointError, "pard_token 3, mask_token_id 7"),
        ({"mask_token_id": VOCAB}, {}, CheckpointError, "mask_token_id is 96, expected one of 96"),
        ({"mask_token_id": [7]}, {}, CheckpointError, r"mask_token_id is \[7\], expected"),
        ({}, {"mask_hidden": None}, CheckpointError, "a P-EAGLE head without mask_hidden"),
        ({}, {"mask_hidden": torch.zeros(32)}, CheckpointError, r"\[32\], fc reads 96"),
        ({}, {"other": torch.zeros(32)}, CheckpointError, "unknown tensors other"),
        ({"eagle_config": {"parallel_draft_step": 3}}, {}, UnsupportedError, "layers of its own"),
    ],
)  # fmt: skip
def test_unclear_files_are_refused(
    changes: dict[str, Any], tensors: dict[str, Tensor | None], error: type[EagleError],
    message: str, tmp_path: Path,
) -> None:  # fmt: skip
    head = write_peagle(tmp_path, SHAPES[0], **changes)
    edit_tensors(head, lambda stored: change(stored, tensors))
    checkpoint = Checkpoint(head)
    assert kind_of_checkpoint(checkpoint) is HEADS["p-eagle"] is kind
    with pytest.raises(error, match=message):
        kind.describe(checkpoint, None, None)


def change(stored: Tensors, changes: dict[str, Tensor | None]) -> None:
    for name, tensor in changes.items():
        if tensor is None:
            del stored[name]
        else:
            stored[name] = tensor


def test_eagle3_refuses_a_peagle_head_by_name(target: TapTarget, tmp_path: Path) -> None:
    head = Checkpoint(write_flat_peagle(tmp_path, SHAPES[0]))
    with pytest.raises(UnsupportedError, match="a P-EAGLE head, which drafts in parallel"):
        eagle3.load(head, target, torch.float32, CacheSpec(64, torch.float32), None)


def test_a_description_names_the_mask(tmp_path: Path) -> None:
    found = kind.describe(Checkpoint(write_peagle(tmp_path, SHAPES[0])), None, None)
    assert found["sizes"]["mask_token_id"] == MASK_TOKEN
    assert any(f"mask_token_id {MASK_TOKEN}" in line for line in report(found))
