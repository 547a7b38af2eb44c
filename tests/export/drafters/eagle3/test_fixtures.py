"""The twelve heads that public checkpoints have taught readers to expect."""

from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export import load_draft
from eagle_aot.export.drafters.eagle3.config import DraftConfig
from eagle_aot.export.drafters.eagle3.reading.geometry import read_geometry
from eagle_aot.export.drafters.eagle3.reading.layout import read_layout
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.targets import TapTarget, load_target
from support.gemma_oracle import random_gemma, save_text_layout
from support.heads.files import (
    HeadShape,
    head_tensors,
    safeailab_config,
    speculators_config,
    write_head,
    write_speculators,
)
from support.heads.layouts import IDS, midlayer, nemo, safeailab

SHAPE = HeadShape()
FULL = HeadShape(draft_vocab=96, own_embedding=False)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TapTarget:
    return load_target(save_text_layout(random_gemma(), tmp_path_factory.mktemp("gemma")), 32)


def geometry(directory: Path, num_layers: int = 36) -> DraftConfig:
    """What is read beside a target of that depth."""
    return read_geometry(read_layout(HeadCheckpoint(directory), num_layers), num_layers)


def flat(directory: Path, shape: HeadShape = SHAPE, **changes: Any) -> Path:
    return write_head(directory, head_tensors(shape), safeailab_config(shape, **changes))


def test_1_midlayer_in_a_pickle_with_default_taps(tmp_path: Path) -> None:
    directory = safeailab(tmp_path, SHAPE, head_tensors(SHAPE))
    assert geometry(directory).tap_layers == (2, 18, 33)
    assert load_draft(directory).config.tap_layers == ()


def test_2_speculators_with_both_norms(tmp_path: Path) -> None:
    shape = HeadShape(norm_before_residual=True, norm_before_fc=True)
    draft = load_draft(write_speculators(tmp_path, shape, taps=[2, 18, 33]))
    assert draft.config.norm_before_residual and draft.config.norm_before_fc
    assert torch.equal(draft.input_norm.weight, head_tensors(shape)["input_norm.weight"])


@pytest.mark.parametrize(
    ("ids", "taps"),
    [
        ([1, 17, 33], (2, 18, 34)),  # lmsys/EAGLE3-gpt-oss-120b-bf16
        ([2, 18, 33], (2, 18, 33)),
        ([24, 30, 36], (24, 30, 36)),  # nvidia/gpt-oss-120b-Eagle3-v3
    ],
)
def test_3_ids_of_a_flat_file(tmp_path: Path, ids: list[int], taps: tuple[int, ...]) -> None:
    assert geometry(flat(tmp_path, eagle_config={IDS: ids})).tap_layers == taps


def test_4_unsorted_negative_offsets_without_a_mask(tmp_path: Path) -> None:
    d2t = head_tensors(SHAPE)["d2t"]
    assert (d2t < 0).any() and (d2t.diff() < 0).any()
    draft = load_draft(flat(tmp_path))
    assert draft.target_ids.tolist() == [i + int(offset) for i, offset in enumerate(d2t)]


def test_5_a_full_vocabulary_with_neither_map_nor_output_table(
    tmp_path: Path, target: TapTarget
) -> None:
    tensors = head_tensors(FULL)
    del tensors["d2t"], tensors["lm_head.weight"]
    config = safeailab_config(FULL, draft_vocab_size=None)
    draft = load_draft(write_head(tmp_path, tensors, config), target, tap_layers=(0, 1, 3))
    assert draft.lm_head.weight.data_ptr() == target.lm_head_weight.data_ptr()
    assert draft.target_ids.tolist() == list(range(96))


def test_6_a_narrow_head_with_an_embedding_of_its_own(tmp_path: Path, target: TapTarget) -> None:
    shape = HeadShape(hidden=24, target_hidden=32)
    draft = load_draft(flat(tmp_path, shape), target, tap_layers=(0, 1, 3))
    assert (draft.config.hidden_size, draft.config.target_hidden_size) == (24, 32)
    assert draft.embed(torch.tensor([[1, 2]])).shape == (1, 2, 24)


def test_7_four_taps(tmp_path: Path) -> None:
    shape = HeadShape(num_taps=4)
    directory = write_speculators(tmp_path, shape, taps=[2, 46, 91, 93])
    assert geometry(directory, 94).tap_layers == (2, 46, 91, 93)


def test_8_a_layer_count_copied_from_the_target(tmp_path: Path) -> None:
    draft = load_draft(flat(tmp_path, num_hidden_layers=40))
    assert draft.config.num_layers == len(draft.layers) == 1


def test_9_tied_in_the_config_with_an_output_table_in_the_file(tmp_path: Path) -> None:
    draft = load_draft(flat(tmp_path, tie_word_embeddings=True))
    assert torch.equal(draft.lm_head.weight, head_tensors(SHAPE)["lm_head.weight"])


def test_10_names_below_model(tmp_path: Path) -> None:
    draft = load_draft(nemo(tmp_path, SHAPE, head_tensors(SHAPE)))
    assert torch.equal(draft.fc.weight, head_tensors(SHAPE)["fc.weight"])


@pytest.mark.parametrize("layout", ["speculators", "nemo", "flat"])
def test_11_a_norm_per_tap_and_feedback_after_the_norm(tmp_path: Path, layout: str) -> None:
    shape = HeadShape(fc_norm=True, norm_output=True)
    config = safeailab_config(shape, norm_output=True, fc_norm=True)
    if layout == "speculators":
        config = speculators_config(shape, [2, 18, 33])
    elif layout == "nemo":
        config["architectures"] = ["LlamaEagle3DraftModel"]
    draft = load_draft(write_head(tmp_path, head_tensors(shape), config))
    assert draft.config.fc_norm and draft.config.norm_output and len(draft.fc_norm) == 3


@pytest.mark.parametrize("stated", [True, False])
def test_12_a_head_without_taps_is_refused(tmp_path: Path, stated: bool) -> None:
    tensors = midlayer(head_tensors(SHAPE))
    del tensors["fc.weight"]
    nested = {"use_aux_hidden_state": False} if stated else None
    config = safeailab_config(SHAPE, eagle_config=nested)
    reason = "last hidden state, without taps" if stated else r"no fc\.weight"
    with pytest.raises(UnsupportedError, match=f"{reason}.*: not an EAGLE-3 head$"):
        load_draft(write_head(tmp_path, tensors, config))
