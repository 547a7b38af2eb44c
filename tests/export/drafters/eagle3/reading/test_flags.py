"""Options of a head that only some trainers write."""

from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_aot.common.errors import CheckpointError
from eagle_aot.export import load_draft
from support.golden_cases import relative_error
from support.heads.files import (
    HeadShape,
    head_tensors,
    safeailab_config,
    speculators_config,
    write_head,
)
from support.heads.layouts import modelopt_config
from support.heads.reference import ReferenceHead

SHAPE = HeadShape()


def flat(directory: Path, shape: HeadShape = SHAPE, **changes: Any) -> Path:
    return write_head(directory, head_tensors(shape), safeailab_config(shape, **changes))


@torch.no_grad()
def test_a_head_without_a_norm_before_its_output_table(tmp_path: Path) -> None:
    shape = HeadShape(final_norm=False)
    config = modelopt_config(shape)
    config["eagle_config"]["use_last_layernorm"] = False
    draft = load_draft(write_head(tmp_path, head_tensors(shape), config))
    assert not draft.config.final_norm
    reference = ReferenceHead(head_tensors(shape), shape)
    embedding, feature = torch.randn(2, 1, 5, 32, generator=torch.Generator().manual_seed(2))
    expected, _ = reference.run(embedding[0], feature[0])
    logits, _ = draft.forward_cached(embedding, feature, torch.arange(5))
    assert relative_error(logits[0], expected) < 1e-5


@pytest.mark.parametrize("value", [True, False])
def test_tensorrt_llms_name_of_feedback_after_the_norm(tmp_path: Path, value: bool) -> None:
    nested = {"return_hidden_post_norm": value}
    draft = load_draft(flat(tmp_path, eagle_config=nested, norm_output=not value))
    assert draft.config.norm_output is value


@pytest.mark.parametrize("where", ["top", "eagle_config", "both"])
def test_flags_are_found_in_both_places(tmp_path: Path, where: str) -> None:
    shape = HeadShape(norm_before_fc=True)
    flag = {"norm_before_fc": True}
    changes = flag if where != "eagle_config" else {}
    nested = flag if where != "top" else None
    assert load_draft(flat(tmp_path, shape, eagle_config=nested, **changes)).config.norm_before_fc


def test_a_nested_flag_must_agree_with_the_tensors(tmp_path: Path) -> None:
    directory = flat(tmp_path, eagle_config={"norm_before_fc": True})
    with pytest.raises(CheckpointError, match="says norm_before_fc True, tensors say False"):
        load_draft(directory)


@pytest.mark.parametrize(("num_taps", "changes"), [
    (3, {}),
    (4, {"num_aux_hidden_states": 4}),
    (4, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 5, 6, 7]}}),
])  # fmt: skip
def test_an_unnamed_target_width_follows_from_the_number_of_taps(
    tmp_path: Path, num_taps: int, changes: dict[str, Any]
) -> None:
    shape = HeadShape(target_hidden=40, num_taps=num_taps)
    config = load_draft(flat(tmp_path, shape, target_hidden_size=None, **changes)).config
    assert (config.target_hidden_size, config.num_taps) == (40, num_taps)


def test_biases_of_q_k_and_v_need_none_of_o(tmp_path: Path) -> None:
    shape = HeadShape(biases=True)
    tensors = {n: t for n, t in head_tensors(shape).items() if "o_proj.bias" not in n}
    draft = load_draft(write_head(tmp_path, tensors, safeailab_config(shape)))
    assert draft.config.attention_bias and not draft.config.output_bias


@pytest.mark.parametrize("layout", ["speculators", "nemo", "flat"])
def test_feedback_after_the_norm_is_read_from_a_head_with_a_norm_per_tap(
    tmp_path: Path, layout: str
) -> None:
    shape = HeadShape(fc_norm=True, norm_output=True)
    config = safeailab_config(shape, norm_output=True, fc_norm=True)
    if layout == "speculators":
        config = speculators_config(shape, [2, 18, 33])
    elif layout == "nemo":
        config["architectures"] = ["LlamaEagle3DraftModel"]
    draft = load_draft(write_head(tmp_path, head_tensors(shape), config))
    assert draft.config.fc_norm and draft.config.norm_output and len(draft.fc_norm) == 3
