"""Reading heads in the layouts they come in."""

from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_aot.common.errors import CheckpointError, PairingError, SettingError
from eagle_aot.export import load_draft
from eagle_aot.targets import TapTarget
from support.heads.files import (
    HeadShape,
    head_tensors,
    safeailab_config,
    speculators_config,
    write_head,
    write_speculators,
)

SHAPE = HeadShape()
FULL_VOCAB = HeadShape(draft_vocab=96)
TOKENS = torch.arange(0, 90, 9)[None]


def test_absent_options_are_off(tmp_path: Path) -> None:
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "rope_theta")
    changes: dict[str, Any] = dict.fromkeys((*names, "speculators_config"))
    config = load_draft(write_speculators(tmp_path, SHAPE, **changes)).config
    assert not any((config.norm_before_residual, config.norm_before_fc, config.norm_output))
    assert config.default_chain_len is None
    flat = safeailab_config(SHAPE, rope_theta=None)
    directory = write_head(tmp_path / "flat", head_tensors(SHAPE), flat)
    assert load_draft(directory).config.rope.theta == 10000.0


@pytest.mark.parametrize("norm_output", [True, False])
def test_a_flat_files_norm_output_is_another_flag(tmp_path: Path, norm_output: bool) -> None:
    config = safeailab_config(SHAPE, norm_output=norm_output)
    draft = load_draft(write_head(tmp_path, head_tensors(SHAPE), config))
    assert draft.config.norm_output is False


@pytest.mark.parametrize("rope", [
    {"rope_parameters": {"rope_type": "default", "rope_theta": 123.0}, "rope_theta": 5.0},
    {"rope_scaling": {"type": "default", "rope_theta": 123.0}, "rope_theta": 5.0},
    {"rope_theta": 123.0, "rope_scaling": None},
])  # fmt: skip
def test_the_rotary_base_is_found_where_it_is_written(tmp_path: Path, rope: dict[str, Any]) -> None:
    directory = write_head(tmp_path, head_tensors(SHAPE), safeailab_config(SHAPE, **rope))
    assert load_draft(directory).config.rope.theta == 123.0


def test_a_full_vocabulary_needs_no_map(tmp_path: Path) -> None:
    tensors = head_tensors(FULL_VOCAB)
    del tensors["d2t"]
    config = safeailab_config(FULL_VOCAB, draft_vocab_size=None, tie_word_embeddings=True)
    draft = load_draft(write_head(tmp_path, tensors, config))
    assert draft.target_ids[torch.arange(96)].tolist() == list(range(96))
    assert torch.equal(draft.lm_head.weight, tensors["lm_head.weight"])
    identity = tensors | {"d2t": torch.zeros(96, dtype=torch.int32)}
    same = load_draft(write_head(tmp_path / "identity", identity, config))
    assert torch.equal(same.target_ids, draft.target_ids)


def test_a_missing_embedding_is_the_targets_raw_table(tmp_path: Path, target: TapTarget) -> None:
    directory = write_speculators(tmp_path, HeadShape(own_embedding=False))
    alone = load_draft(directory)
    assert not alone.has_embedding
    with pytest.raises(SettingError, match="no embedding of its own: load it with its target"):
        alone.embed(TOKENS)
    shared = load_draft(directory, target)
    assert shared.has_embedding
    assert torch.equal(shared.embed(TOKENS), target.embed_weight[TOKENS])  # without Gemma's scale
    shifted = load_draft(directory, target, dtype=torch.bfloat16)
    assert torch.equal(shifted.embed(TOKENS), target.embed_weight[TOKENS].bfloat16())


def test_a_missing_output_table_is_the_targets(tmp_path: Path, target: TapTarget) -> None:
    tensors = head_tensors(FULL_VOCAB)
    del tensors["lm_head.weight"], tensors["d2t"]
    directory = write_head(tmp_path, tensors, speculators_config(FULL_VOCAB, [0, 1, 4]))
    with pytest.raises(CheckpointError, match=r"no lm_head\.weight: load it with its target"):
        load_draft(directory)
    draft = load_draft(directory, target)
    assert draft.lm_head.weight.data_ptr() == target.lm_head_weight.data_ptr()
    assert draft.target_ids.tolist() == list(range(96))
    assert draft.config.tap_layers == (0, 1, 4)


@pytest.mark.parametrize("table", ["embed_tokens.weight", "lm_head.weight"])
def test_a_table_of_another_width_cannot_be_shared(
    tmp_path: Path, target: TapTarget, table: str
) -> None:
    shape = HeadShape(hidden=40, draft_vocab=96)
    tensors = head_tensors(shape)
    del tensors[table]
    directory = write_head(tmp_path, tensors, speculators_config(shape, [0, 1, 3]))
    with pytest.raises(PairingError, match=rf"no {table} and the target's is \[96, 32\]"):
        load_draft(directory, target)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_widened(tmp_path: Path, dtype: torch.dtype) -> None:
    narrow = {n: t if n == "d2t" else t.to(dtype) for n, t in head_tensors(SHAPE).items()}
    draft = load_draft(write_head(tmp_path, narrow, safeailab_config(SHAPE)))
    assert {p.dtype for p in draft.parameters()} == {torch.float32}
    assert torch.equal(draft.fc.weight, narrow["fc.weight"].float())
