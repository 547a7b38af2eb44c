"""`eagle-inspect draft`: the facts of a head, and the source of each."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from eagle_aot.export import cli
from eagle_aot.export.inspect_cli import main
from eagle_aot.targets.family import TINY_DIR
from support.heads.files import (
    HeadShape,
    head_tensors,
    safeailab_config,
    write_head,
    write_speculators,
)
from support.heads.layouts import specforge
from support.refusals import refuses

SHAPE = HeadShape()
TINY_HEAD = TINY_DIR / "head"


def describe(directory: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["draft", str(directory), *arguments])


def described(directory: Path, *arguments: str) -> dict[str, Any]:
    result = describe(directory, "--json", *arguments)
    assert result.exit_code == 0, result.output
    assert result.output.count("\n") == 1
    return json.loads(result.output)


def test_shipped_head_is_described_with_its_target() -> None:
    found = described(TINY_HEAD, "--target-model", "gemma4-tiny")
    assert found["layout"]["value"] == "vLLM speculators"
    assert found["taps"]["value"] == [2, 4, 5]
    assert found["taps"]["source"].endswith("a speculators file names boundaries")
    assert found["vocabulary"]["target"] == 1024 and found["vocabulary"]["draft"] == 512
    assert found["vocabulary"]["source"] == "d2t, ascending, t2d agrees"
    assert found["options"]["norm_before_residual"] == {
        "value": True,
        "source": "norm_before_residual in config.json",
    }
    assert found["options"]["fc_norm"] == {"value": False, "source": "no fc_norm.0.weight"}
    assert found["tables"] == {
        "embed_tokens.weight": "its own, equal to the target's: stored once",
        "lm_head.weight": "its own",
    }
    assert found["chain_len"] == 4


def test_shipped_head_is_described_without_its_target() -> None:
    lines = describe(TINY_HEAD).output.splitlines()
    assert lines[0].split(maxsplit=1) == ["drafter", "eagle3"]
    assert lines[1].split(maxsplit=1) == [
        "layout",
        "vLLM speculators (speculators_model_type in config.json)",
    ]
    words = dict(line.split(maxsplit=1) for line in lines)
    assert words["taps"].startswith("2,4,5 (eagle_aux_hidden_state_layer_ids [2, 4, 5]: ")
    assert words["rope"].startswith("rope_type default, theta 10000.0 (rope_")
    assert words["norm_output"].startswith("off (") and words["final_norm"].startswith("on (")
    assert words["embed_tokens.weight"] == "its own"


def test_shared_tables_and_a_flag_of_another_meaning_are_described(tmp_path: Path) -> None:
    found = described(specforge(tmp_path, SHAPE, head_tensors(SHAPE)))
    assert found["tables"]["embed_tokens.weight"] == "the target's"
    assert found["options"]["norm_output"] == {
        "value": False,
        "source": "norm_output in config.json: in a flat file the norm before lm_head",
    }


def test_taps_may_be_overruled(tmp_path: Path, gemma: Path) -> None:
    directory = write_speculators(tmp_path, SHAPE, taps=[0, 1, 3])
    found = described(directory, "--target-dir", str(gemma), "--tap-layers", "1,2,4")
    assert found["taps"] == {"value": [1, 2, 4], "source": "named by --tap-layers"}


def test_default_taps_follow_from_a_registered_target(tmp_path: Path) -> None:
    shape = HeadShape(hidden=8, inner=16, target_hidden=256, vocab=1024)
    directory = write_head(tmp_path, head_tensors(shape), safeailab_config(shape))
    arguments = ("--target-model", "gemma4-tiny")
    message = "a target of 6 layers has no default ones: name the boundaries with --tap-layers"
    refuses(describe(directory, *arguments), message)
    found = described(directory, *arguments, "--tap-layers", "2,4,5")
    assert found["taps"]["value"] == [2, 4, 5]


def test_default_taps_say_where_they_come_from(tmp_path: Path, gemma: Path) -> None:
    directory = write_head(tmp_path / "head", head_tensors(SHAPE), safeailab_config(SHAPE))
    config = json.loads((gemma / "config.json").read_text()) | {"num_hidden_layers": 60}
    (tmp_path / "config.json").write_text(json.dumps(config))  # no weights are needed
    found = described(directory, "--target-dir", str(tmp_path))
    assert found["taps"]["value"] == [2, 30, 57]
    assert found["taps"]["source"] == "none named: 2, n // 2 and n - 3 of the target's 60 layers"


@pytest.mark.parametrize(("changes", "arguments", "message"), [
    ({}, ("--tap-layers", "2,1,3"), "--tap-layers [2, 1, 3]: expected distinct, ascending"),
    ({}, ("--tap-layers", "1,2"), "2 tap layers, but fc takes 3 taps"),
    ({}, ("--target-model", "nothing"), "unknown target 'nothing'"),
    ({}, ("--target-model", "gemma4-tiny"), "'s hidden size is 256, the head was made for 32"),
    ({"architectures": ["DFlashDraftModel"]}, (), "target_layer_ids: None is not a list"),
    ({"architectures": ["EagleModel"]}, (), "an EAGLE-1 or EAGLE-2 head"),
    ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, (), "a head with MLA attention"),
    ({"architectures": ["PEagleDraftModel"]}, (), "a P-EAGLE head"),
    ({"architectures": ["Qwen3NextMTP"]}, (), "an MTP head"),
    ({"dflash_config": {"mask_token_id": 4}}, (), "target_layer_ids: None is not a list"),
    ({"pard_token": 7}, (), "a P-EAGLE head"),
])  # fmt: skip
def test_unreadable_heads_are_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], arguments: tuple[str, ...], message: str
) -> None:
    config = safeailab_config(SHAPE, **changes)
    directory = write_head(tmp_path, head_tensors(SHAPE), config)
    refuses(describe(directory, *arguments), message)


def test_taps_beyond_the_target_are_refused(tmp_path: Path, gemma: Path) -> None:
    directory = write_speculators(tmp_path, SHAPE)
    arguments = ("--target-dir", str(gemma), "--tap-layers", "1,2,5")
    refuses(describe(directory, *arguments), "tap layers [1, 2, 5] must lie in [0, 4]")


def test_tap_layers_that_are_no_numbers_are_wrong_usage(tmp_path: Path) -> None:
    result = describe(tmp_path, "--tap-layers", "one")
    assert result.exit_code == 2 and "'--tap-layers': 'one'" in result.output


def test_an_export_takes_the_taps_that_are_named(tmp_path: Path, gemma: Path) -> None:
    """Refused where the target has no such boundary, so they arrived."""
    directory = write_speculators(tmp_path, SHAPE)
    pair = ["--target-model", "gemma4-31b", "--target-dir", str(gemma), "--draft-dir"]
    arguments = [*pair, str(directory), "--check-only", "--tap-layers", "1,2,9"]
    *_plan, line = CliRunner().invoke(cli.main, arguments).output.splitlines()
    assert line.startswith("Error: ") and "tap layers [1, 2, 9] must lie in [0, 4]" in line
    dummy = ["--target-model", "gemma4-tiny", "--load-format", "dummy", "--tap-layers", "1,2,3"]
    refuses(CliRunner().invoke(cli.main, dummy), "--tap-layers: a dummy taps where public heads do")
