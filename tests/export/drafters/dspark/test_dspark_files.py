"""Reading the files of DSpark heads, and the errors for forms that are not read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eagle_aot.common.errors import EagleError
from eagle_aot.export.drafters.registry import HEADS, name_of_kind
from eagle_aot.export.inspect_cli import main
from eagle_aot.targets.checkpoint import Checkpoint
from support.checkpoint_edits import Tensors, edit_tensors, put
from support.heads.dspark import CASES, DEEPSPEC, SPECULATORS, changed_head, dspark_pair

DFLASH = {"mask_token_id": 319, "target_layer_ids": [0, 2, 4]}
HYBRID: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "markov_rank": None,
    "dflash_config": DFLASH,
}
NO_LAYOUT: dict[str, Any] = {"sample_from_anchor": None, "speculators_config": None}
PROPOSES_EIGHT = {"proposal_methods": [{"speculative_tokens": 8}]}


@pytest.mark.parametrize(
    ("case", "changes", "source"),
    [
        (DEEPSPEC, {}, "architectures Qwen3DSparkModel"),
        (DEEPSPEC, {"architectures": None}, "markov_rank in config.json"),
        (DEEPSPEC, HYBRID | {"dflash_config": DFLASH | {"markov_rank": 8}}, "markov_rank in"),
        (SPECULATORS, {"architectures": None}, "speculators_model_type in config.json"),
    ],
)
def test_each_sign_of_the_kind_is_recognised(
    case: str, changes: dict[str, Any], source: str, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(changed_head(tmp_path, case, **changes))
    assert name_of_kind(checkpoint) == "dspark"
    facts = HEADS["dspark"].describe(checkpoint, None, None)
    assert facts["layout"]["source"].startswith(source)


def test_tensors_tell_a_head_from_a_dflash_head(tmp_path: Path) -> None:
    checkpoint = Checkpoint(changed_head(tmp_path, **HYBRID))
    assert name_of_kind(checkpoint) == "dspark"
    facts = HEADS["dspark"].describe(checkpoint, None, None)
    assert facts["layout"]["source"].startswith("tensor markov_head.markov_w")
    assert (facts["sizes"]["markov_rank"], facts["chain_len"]) == (8, 6)


@pytest.mark.parametrize(
    ("case", "changes", "drafts"),
    [
        (DEEPSPEC, {}, 7),
        (DEEPSPEC, {"sample_from_anchor": False}, 6),
        (DEEPSPEC, HYBRID, 6),
        (DEEPSPEC, HYBRID | {"dflash_config": DFLASH | {"sample_from_anchor": True}}, 7),
        (SPECULATORS, {}, 7),
        (SPECULATORS, {"sample_from_anchor": True}, 8),
        (SPECULATORS, {"sample_from_anchor": None}, 7),
        (SPECULATORS, NO_LAYOUT, 7),
        (SPECULATORS, {"sample_from_anchor": None, "speculators_config": PROPOSES_EIGHT}, 8),
    ],
)
def test_the_rows_that_draft_follow_from_the_layout(
    case: str, changes: dict[str, Any], drafts: int, tmp_path: Path
) -> None:
    """The key decides, then how many tokens speculators proposed, then the form."""
    checkpoint = Checkpoint(changed_head(tmp_path, case, **changes))
    facts = HEADS["dspark"].describe(checkpoint, None, None)
    assert facts["chain_len"] == drafts


@pytest.mark.parametrize(
    ("case", "layout", "block", "vocab"),
    [(DEEPSPEC, "DeepSpec", 7, 320), (SPECULATORS, "vLLM speculators", 8, 96)],
)
def test_description_has_the_sizes_of_both_layouts(
    case: str, layout: str, block: int, vocab: int
) -> None:
    arguments = ["draft", str(CASES / case / "draft"), "--target-dir", str(CASES / case / "target")]
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert found["layout"]["value"] == layout and found["taps"]["value"] == [1, 3, 5]
    assert (found["block_size"], found["mask_token_id"], found["chain_len"]) == (block, 319, 7)
    assert found["sliding layers"] == "causal within a block"
    sizes = ("markov_rank", "markov_head_type", "confidence_rank", "draft_vocab_size")
    assert [found["sizes"][size] for size in sizes] == [8, "vanilla", 8, vocab]
    assert found["sizes"]["sample_from_anchor"] == (case == DEEPSPEC)


def test_taps_begin_with_what_the_embedding_returns(tmp_path: Path) -> None:
    head = changed_head(tmp_path, target_layer_ids=[-1, 2, 4])
    assert dspark_pair(head=head)[2].tap_layers == (0, 3, 5)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        (DEEPSPEC, {"architectures": ["Gemma4DSparkModel"]}, "Gemma4DSparkModel: not read"),
        (DEEPSPEC, {"architectures": ["K3DSparkModel"]}, "K3DSparkModel: not read"),
        (
            DEEPSPEC,
            {"architectures": ["DSparkDraftModel"], "model_type": "deepseek_v4"},
            "a stage of DeepSeek-V4",
        ),
        (DEEPSPEC, {"architectures": None, "dspark_rank": 4}, "inside a target"),
        (DEEPSPEC, {"markov_head_type": "rnn"}, "'rnn': vanilla and gated are read"),
        (DEEPSPEC, {"markov_head_type": "gated"}, "gate_proj.weight' is missing"),
        (DEEPSPEC, {"final_logit_softcapping": 30.0}, "final_logit_softcapping in a DSpark"),
        (
            DEEPSPEC,
            {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8},
            "sliding layers in a DSpark head of DeepSpec",
        ),
        (DEEPSPEC, {"confidence_head_with_markov": False}, r"proj.weight is \[1, 72\]"),
        (DEEPSPEC, {"markov_rank": 4}, r"markov_w1.weight is \[320, 8\]"),
        (DEEPSPEC, {"block_size": 17}, "blocks of 17"),
        (DEEPSPEC, {"dflash_config": DFLASH | {"selector_rank": 8}}, "a DFlash2 head"),
        (SPECULATORS, {"draft_vocab_size": 300}, "draft_vocab_size is 300"),
    ],
)
def test_unsupported_configs_are_refused_by_name(
    case: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(EagleError, match=message):
        dspark_pair(case, changed_head(tmp_path, case, **changes))


@pytest.mark.parametrize(("change", "message"), [
    (put("markov_head.joint_proj.weight", 24, 80), "whose Markov head is recurrent"),
    (put("markov_head.markov_w3.weight", 8, 8), "unknown tensors markov_head.markov_w3"),
    (put("candidate_selector.predecessor_codebook", 320, 8), "a DFlash2 head"),
    (lambda tensors: tensors.pop("markov_head.markov_w2.weight"), "markov_w2.weight' is missing"),
    (lambda tensors: tensors.pop("confidence_head.proj.weight"), "there is no confidence_head"),
])  # fmt: skip
def test_unsupported_tensors_are_refused_by_name(
    change: Callable[[Tensors], Any], message: str, tmp_path: Path
) -> None:
    head = changed_head(tmp_path)
    edit_tensors(head, change)
    with pytest.raises(EagleError, match=message):
        dspark_pair(head=head)


def test_a_confidence_head_that_is_switched_off_is_not_read(tmp_path: Path) -> None:
    _, _, draft = dspark_pair(head=changed_head(tmp_path, enable_confidence_head=False))
    assert draft.confidence_head is None and draft.config.confidence_rank is None
