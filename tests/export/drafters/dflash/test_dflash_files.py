"""Reading the files of DFlash heads, and the errors for unsupported ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eagle_aot.common.errors import EagleError
from eagle_aot.export.drafters.dflash import kind
from eagle_aot.export.drafters.registry import HEADS, kind_of_checkpoint
from eagle_aot.export.inspect_cli import main
from eagle_aot.targets.checkpoint import Checkpoint
from support.checkpoint_edits import Tensors, edit_tensors, put
from support.heads.dflash import CASE, as_speculators, copied_head, dflash_pair

OWN = {"mask_token_id": 319, "target_layer_ids": [1, 3, 4]}


def test_both_layouts_are_recognised(tmp_path: Path, random_pair: tuple[Path, Path]) -> None:
    for head in (
        CASE / "draft",
        as_speculators(tmp_path),
        copied_head(tmp_path / "x", architectures=None),
    ):
        assert kind_of_checkpoint(Checkpoint(head)) is HEADS["dflash"]
    assert not kind.claims(Checkpoint(random_pair[1]))


def test_description_names_the_source_of_each_fact() -> None:
    arguments = ["draft", str(CASE / "draft"), "--target-dir", str(CASE / "target")]
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert found["layout"] == {"value": "z-lab", "source": "architectures DFlashDraftModel"}
    assert found["taps"]["value"] == [2, 4, 5] and "outputs are tapped" in found["taps"]["source"]
    assert (found["block_size"], found["mask_token_id"], found["chain_len"]) == (6, 319, 5)
    lines = CliRunner().invoke(main, arguments).stdout.splitlines()
    assert any(line.split() == ["lm_head.weight", "the", "target's"] for line in lines)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dflash_config": {"mask_token_id": 319}}, "target_layer_ids: None is not a list"),
        ({"dflash_config": OWN | {"target_layer_ids": [3, 1]}}, r"\[3, 1\] is not ascending"),
        ({"dflash_config": OWN | {"mask_token_id": None}}, "mask_token_id is None"),
        ({"dflash_config": OWN | {"mask_token_id": 320}}, "mask is token 320, the target has 320"),
        ({"dflash_config": OWN | {"target_layer_ids": [1, 3, 6]}}, "taps boundary 7, the target"),
        ({"dflash_config": OWN | {"selector_rank": 4}}, "a DFlash2 head"),
        ({"dflash_config": OWN | {"attention_sink_bias": True}}, "attention sinks"),
        ({"dflash_config": OWN | {"use_aux_hidden_state": False}}, "without taps"),
        ({"sample_from_anchor": True}, "rows predict the token after their own"),
        ({"markov_rank": 8}, "a DSpark head"),
        ({"block_size": 17}, "blocks of 17: those of 2 to 16 rows are read"),
        ({"attention_bias": True}, "attention_bias in a DFlash head"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"layer_types": ["full_attention"]}, "for 2 layers"),
        ({"draft_vocab_size": 100}, "draft_vocab_size is 100, and there is no lm_head.weight"),
        ({"vocab_size": 321}, "the target's vocabulary is 320, the head was made for 321"),
        ({"target_hidden_size": 32}, r"fc.weight is \[64, 192\], config.json says \[64, 96\]"),
        ({"quantization_config": {"bits": 4}}, "the head is quantized"),
    ],
)  # fmt: skip
def test_unsupported_configs_are_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(EagleError, match=message):
        dflash_pair(copied_head(tmp_path, **changes))


@pytest.mark.parametrize(("change", "message"), [
    (put("aux_hidden_norms.0.weight", 64), "Laguna's form"),
    (put("layers.0.attention_conv.base_kernel", 2, 3, 64), "with convolutions"),
    (put("markov_head.markov_w1.weight", 320, 8), "a DSpark head"),
    (put("mask_hidden", 1, 192), "a P-EAGLE head"),
    (put("layers.2.self_attn.q_proj.weight", 64, 64), "unknown tensors layers.2"),
    (lambda tensors: tensors.pop("norm.weight"), "'norm.weight' is missing"),
    (put("norm.weight", 63), r"norm.weight is \[63\], config.json says \[64\]"),
])  # fmt: skip
def test_unsupported_tensors_are_refused_by_name(
    change: Callable[[Tensors], Any], message: str, tmp_path: Path
) -> None:
    head = copied_head(tmp_path)
    edit_tensors(head, change)
    with pytest.raises(EagleError, match=message):
        dflash_pair(head)
