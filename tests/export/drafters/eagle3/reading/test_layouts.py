"""One and the same head in every layout computes the same."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointNotFoundError
from eagle_aot.export import load_draft
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.reading.geometry import read_geometry
from eagle_aot.export.drafters.eagle3.reading.layout import read_layout
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from support.heads.files import HeadShape, head_tensors
from support.heads.layouts import DEEP, TRAINERS, Writer, safeailab_shards, speculators, tensors_of

SHAPE = HeadShape()
TAPS = (0, 1, 3)
TOKENS = torch.arange(0, 90, 9)[None]


@torch.no_grad()
def outputs(draft: Eagle3Draft) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, recurrent features and proposed target ids on fixed inputs."""
    shape = (1, TOKENS.shape[1], draft.fc.in_features)
    taps = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    input_pos = torch.arange(TOKENS.shape[1])
    logits, recurrent = draft.forward_cached(draft.embed(TOKENS), draft.fuse(taps), input_pos)
    return logits, recurrent, draft.target_ids[logits.argmax(-1)]


def agree(directory: Path, write: Writer, shape: HeadShape, target: TapTarget) -> None:
    """Assert that the layout of `write` gives bit for bit what a speculators file gives."""
    tensors = tensors_of(shape, target.embed_weight)
    expected = outputs(
        load_draft(speculators(directory / "a", shape, tensors), target, 32, tap_layers=TAPS)
    )
    draft = load_draft(write(directory / "b", shape, tensors), target, 32, tap_layers=TAPS)
    for found, wanted in zip(outputs(draft), expected, strict=True):
        assert torch.equal(found, wanted)
    assert draft.embed_tokens.weight.data_ptr() == target.embed_weight.data_ptr()


@pytest.mark.parametrize("write", TRAINERS, ids=lambda write: write.__name__)
def test_every_layout_of_one_head_computes_the_same(
    tmp_path: Path, target: TapTarget, write: Writer
) -> None:
    agree(tmp_path, write, SHAPE, target)


@pytest.mark.parametrize("write", DEEP, ids=lambda write: write.__name__)
@pytest.mark.parametrize("layers", [2, 3])
def test_a_head_of_several_layers_in_every_layout(
    tmp_path: Path, target: TapTarget, write: Writer, layers: int
) -> None:
    agree(tmp_path, write, HeadShape(num_layers=layers), target)


@pytest.mark.parametrize(("write", "trainer"), TRAINERS.items())
def test_every_layout_is_recognised_and_taps_the_same(
    tmp_path: Path, target: TapTarget, write: Writer, trainer: str
) -> None:
    tensors = tensors_of(SHAPE, target.embed_weight)
    head = read_layout(Checkpoint(write(tmp_path, SHAPE, tensors)), 9)
    assert head.trainer == trainer and head.recognised_by
    assert read_geometry(head, 9).tap_layers == (2, 4, 6)


def test_a_table_that_differs_from_the_targets_is_kept(tmp_path: Path, target: TapTarget) -> None:
    tensors = tensors_of(SHAPE, target.embed_weight)
    tensors["embed_tokens.weight"][5, 5] += 0.5
    draft = load_draft(speculators(tmp_path, SHAPE, tensors), target, tap_layers=TAPS)
    assert torch.equal(draft.embed_tokens.weight, tensors["embed_tokens.weight"])


def test_an_output_table_that_equals_the_targets_is_the_targets(
    tmp_path: Path, target: TapTarget
) -> None:
    shape = HeadShape(draft_vocab=96)
    tensors = tensors_of(shape, target.embed_weight)
    tensors["lm_head.weight"] = target.lm_head_weight.clone()
    draft = load_draft(speculators(tmp_path, shape, tensors), target, tap_layers=TAPS)
    assert draft.lm_head.weight.data_ptr() == target.lm_head_weight.data_ptr()


@pytest.mark.parametrize("shard", ["pytorch_model-00002-of-00002.bin", "../other.bin", "x.txt"])
def test_a_pickled_shard_that_is_not_there_is_refused(tmp_path: Path, shard: str) -> None:
    directory = safeailab_shards(tmp_path / "head", SHAPE, head_tensors(SHAPE))
    last = directory / "pytorch_model-00002-of-00002.bin"
    last.unlink()
    (tmp_path / "other.bin").touch()
    (directory / "x.txt").touch()
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(index.read_text().replace(last.name, shard))
    with pytest.raises(CheckpointNotFoundError, match=r"index\.json: shard '.*' is missing"):
        load_draft(directory)
