"""Reading the files of DFlash2 heads, and the errors for forms that are not read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from eagle_aot.common.errors import EagleError
from eagle_aot.export.drafters.registry import HEADS, kind_of_checkpoint, name_of_kind
from eagle_aot.export.inspect_cli import main
from eagle_aot.targets.checkpoint import Checkpoint
from support.checkpoint_edits import Tensors, edit_tensors, put
from support.heads.dflash import CASE as DFLASH_CASE
from support.heads.dflash2 import CASES, SPECULATORS, Z_LAB, changed_head, dflash2_pair

UNNAMED = {"architectures": ["DFlashDraftModel"], "conv_kernel_size": None, "selector_rank": None}


@pytest.mark.parametrize(
    ("case", "changes", "source"),
    [
        (Z_LAB, {}, "architectures DFlash2DraftModel"),
        (Z_LAB, {"architectures": ["DFlashDraftModel"]}, "conv_kernel_size in dflash_config"),
        (Z_LAB, UNNAMED, "tensor candidate_selector.hidden_projection.weight"),
        (SPECULATORS, {"architectures": None}, "speculators_model_type in config.json"),
    ],
)
def test_each_sign_of_the_kind_is_recognised(
    case: str, changes: dict[str, Any], source: str, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(changed_head(tmp_path, case, **changes))
    assert kind_of_checkpoint(checkpoint) is HEADS["dflash2"]
    if changes is not UNNAMED:
        facts = HEADS["dflash2"].describe(checkpoint, None, None)
        assert facts["layout"]["source"] == source
    else:
        with pytest.raises(EagleError, match="'conv_kernel_size' is missing"):
            HEADS["dflash2"].describe(checkpoint, None, None)


def test_a_dflash_head_is_none() -> None:
    assert name_of_kind(Checkpoint(DFLASH_CASE / "draft")) == "dflash"


@pytest.mark.parametrize(
    ("case", "layout", "cap"), [(Z_LAB, "z-lab", 20.0), (SPECULATORS, "vLLM speculators", None)]
)
def test_description_has_the_sizes_of_both_layouts(case: str, layout: str, cap: Any) -> None:
    arguments = ["draft", str(CASES / case / "draft"), "--target-dir", str(CASES / case / "target")]
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert found["layout"]["value"] == layout and found["taps"]["value"] == [1, 3, 5]
    assert (found["block_size"], found["mask_token_id"], found["chain_len"]) == (8, 319, 7)
    assert found["sliding layers"] == "see both ways" and found["sizes"]["softcap"] == cap
    sizes = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    assert [found["sizes"][size] for size in sizes] == [2, 16, 8, 4]
    assert found["tables"] == dict.fromkeys(
        ("embed_tokens.weight", "lm_head.weight"), "the target's"
    )


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        (Z_LAB, {"architectures": ["DFlash2BeamDraftModel"]}, "DFlash2BeamDraftModel: not read"),
        (Z_LAB, {"architectures": ["MiniMaxDFlash2DraftModel"]}, "MiniMaxDFlash2DraftModel: not"),
        (Z_LAB, {"draft_ffn_type": "moe"}, "MLPs of experts"),
        (Z_LAB, {"conv_group_size": 24}, "conv_group_size 24 for a width of 64"),
        (Z_LAB, {"conv_kernel_size": 9}, "conv_kernel_size is 9, expected at most 8"),
        (Z_LAB, {"conv_kernel_size": 3}, r"base_kernel is \[2, 2, 64\], config.json says \[2, 3"),
        (Z_LAB, {"selector_top_k": 17}, "selector_top_k 17: up to 16 candidates are read"),
        (Z_LAB, {"selector_rank": None}, "'selector_rank' is missing"),
        (
            SPECULATORS,
            {"draft_vocab_size": 300},
            "draft_vocab_size is 300, and there is no",
        ),
        (SPECULATORS, {"sample_from_anchor": True}, "rows predict the token after their own"),
        (SPECULATORS, {"markov_rank": 8}, "a DSpark head"),
    ],
)
def test_unsupported_configs_are_refused_by_name(
    case: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(EagleError, match=message):
        dflash2_pair(case, changed_head(tmp_path, case, **changes))


@pytest.mark.parametrize(("change", "message"), [
    (put("markov_head.markov_w1.weight", 320, 8), "a DSpark head"),
    (put("candidate_selector.bias", 8), "unknown tensors candidate_selector.bias"),
    (put("candidate_selector.successor_codebook", 300, 8), r"codebook is \[300, 8\]"),
    (put("lm_head.weight", 300, 64), "a reduced vocabulary"),
    (lambda tensors: tensors.pop("layers.0.mlp_conv.base_kernel"), "base_kernel' is missing"),
])  # fmt: skip
def test_unsupported_tensors_are_refused_by_name(
    change: Callable[[Tensors], Any], message: str, tmp_path: Path
) -> None:
    head = changed_head(tmp_path)
    edit_tensors(head, change)
    with pytest.raises(EagleError, match=message):
        dflash2_pair(head=head)


def test_codebooks_may_be_stored_as_weights(tmp_path: Path) -> None:
    head = changed_head(tmp_path)

    def rename(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("codebook")]:
            tensors[f"{name}.weight"] = tensors.pop(name)

    edit_tensors(head, rename)
    selectors = [dflash2_pair(head=head)[2], dflash2_pair()[2]]
    first, second = (draft.candidate_selector.successor_codebook.weight for draft in selectors)
    assert torch.equal(first, second)
