"""How an assistant's files are understood, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from eagle_aot.common.errors import EagleError, PairingError, SettingError, UnsupportedError
from eagle_aot.export import ExportSpec, load_pair, resolve_checkpoints
from eagle_aot.export.drafters.gemma4_assistant import kind
from eagle_aot.export.drafters.gemma4_assistant.checkpoint import clusters_of, read_files
from eagle_aot.export.drafters.registry import HEADS, kind_of_checkpoint
from eagle_aot.export.inspect_cli import main
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.checkpoint_edits import Tensors, edit_config, edit_tensors, put
from support.golden_cases import GOLDEN
from support.heads.assistants import assistant_pair

CASE = GOLDEN / "mtp" / "two_layers"
TABLE, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def assistant(tmp_path: Path) -> Path:
    return shutil.copytree(CASE / "assistant", tmp_path / "assistant")


def edit_text(directory: Path, **changes: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    edit_config(directory, text_config=config["text_config"] | changes)


@pytest.mark.parametrize("changes", [
    {},
    {"model_type": "gemma4_unified_assistant"},
    {"model_type": None},
    {"model_type": None, "architectures": ["Gemma4UnifiedAssistantForCausalLM"]},
    {"model_type": None, "architectures": None},
])  # fmt: skip
def test_assistant_is_known_by_its_type_class_or_projections(
    changes: dict[str, Any], assistant: Path
) -> None:
    edit_config(assistant, **changes)
    assert kind_of_checkpoint(Checkpoint(assistant)) is HEADS["gemma4-assistant"]


def test_assistants_and_heads_are_not_confused(random_pair: tuple[Path, Path]) -> None:
    head, caches = Checkpoint(random_pair[1]), CacheSpec(32, torch.float32)
    assert not kind.claims(head)
    target = load_target(CASE / "target", 32)
    with pytest.raises(UnsupportedError, match="head: no Gemma 4 assistant: neither model_type"):
        kind.load(head, target, torch.float32, caches, None)
    assistant = Checkpoint(CASE / "assistant")
    with pytest.raises(UnsupportedError, match="an assistant of Gemma 4: not an EAGLE-3 head"):
        HEADS["eagle3"].load(assistant, target, torch.float32, caches, None)


def test_assistant_is_described_with_what_decided(assistant: Path) -> None:
    (assistant / "generation_config.json").write_text('{"num_assistant_tokens": 6}')
    edit_config(assistant, draft_reading={"window_offset": 0})
    arguments = ["draft", str(assistant), "--target-dir", str(CASE / "target")]
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    source = "model_type gemma4_assistant"
    assert found["layout"] == {"value": "Gemma 4 assistant", "source": source}
    assert found["sizes"]["target_hidden_size"] == 32 and found["chain_len"] == 6
    stated = "draft_reading.window_offset in config.json"
    assert found["window_offset"] == {"value": 0, "source": stated}
    assert found["position_offset"]["value"] == 1 and found["head"] == "dense"
    lines = CliRunner().invoke(main, arguments).stdout.splitlines()
    assert any(line.startswith("kv_layers") and "last of each kind" in line for line in lines)


def test_per_layer_config_says_the_same_as_the_published_keys(assistant: Path) -> None:
    plain = read_files(Checkpoint(assistant)).config
    table = {"1": {"head_dim": 32, "num_key_value_heads": 1}}
    gone = {"global_head_dim": None, "num_global_key_value_heads": None}
    edit_text(assistant, per_layer_config=table, **gone)
    assert read_files(Checkpoint(assistant)).config == plain


def test_its_last_layer_is_full_whatever_is_said(assistant: Path) -> None:
    plain = read_files(Checkpoint(assistant)).config
    edit_text(assistant, layer_types=["sliding_attention"] * 2)
    assert read_files(Checkpoint(assistant)).config == plain


def test_tables_that_are_not_tied_are_both_read(assistant: Path) -> None:
    edit_config(assistant, tie_word_embeddings=False)
    edit_tensors(assistant, lambda t: t.update({OUTPUT: t[TABLE] * 2}))
    _, _, draft = assistant_pair(CASE, assistant)
    _, _, tied = assistant_pair(CASE)
    assert torch.equal(draft.lm_head.weight, tied.lm_head.weight * 2)


def drop(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.pop(name)


Q, K = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"


@pytest.mark.parametrize(("change", "message"), [
    (drop(Q), "q_proj.weight' is missing"),
    (put(Q, 32, 31), r"q_proj.weight is \[32, 31\], config.json says \[32, 32\]"),
    (put(K, 16, 32), "k_proj.weight: an assistant has only queries"),
    (put("other", 1), "unknown tensors other"),
    (put(OUTPUT, 384, 32), "config.json ties the tables, but lm_head.weight is another"),
    (put("masked_embedding.centroids.weight", 8, 32), "use_ordered_embeddings is false"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_refused(
    change: Callable[[Tensors], Any], message: str, assistant: Path
) -> None:
    edit_tensors(assistant, change)
    with pytest.raises(EagleError, match=message):
        assistant_pair(CASE, assistant)


@pytest.mark.parametrize(("changes", "message"), [
    ({"quantization_config": {"bits": 4}}, "the head is quantized"),
    ({"text_config": None}, "no text_config"),
    ({"backbone_hidden_size": 48}, "hidden size is 32, the head was made for 48"),
    ({"use_ordered_embeddings": True}, "centroids.weight is missing"),
    ({"draft_reading": {"positions": 1}}, "unknown key 'positions'"),
    ({"draft_reading": {"window_offset": 2}}, "window_offset is 2, known are -1, 0, 1"),
    ({"draft_reading": {"kv_layers": [0]}}, "reads a full_attention layer, and the target"),
    ({"draft_reading": {"kv_layers": 0}}, "kv_layers is no list of layers"),
])  # fmt: skip
def test_configs_that_do_not_fit_are_refused(
    changes: dict[str, Any], message: str, assistant: Path
) -> None:
    edit_config(assistant, **changes)
    with pytest.raises(EagleError, match=message):
        assistant_pair(CASE, assistant)


@pytest.mark.parametrize(("changes", "message"), [
    ({"hidden_size_per_layer_input": 8}, "per-layer embeddings"),
    ({"num_kv_shared_layers": 1}, "whose layers store keys of their own"),
    ({"use_double_wide_mlp": True}, "double-wide MLPs"),
    ({"attention_bias": True}, "attention biases"),
    ({"vocab_size": 383}, "vocabulary is 384, the head was made for 383"),
    ({"sliding_window": 8}, "the target's window is 16, the assistant's 8"),
    ({"head_dim": 8}, r"has 1 key/value heads of 16, .* layers read 1 of 8"),
])  # fmt: skip
def test_layers_of_another_kind_are_refused(
    changes: dict[str, Any], message: str, assistant: Path
) -> None:
    edit_text(assistant, **changes)
    with pytest.raises(EagleError, match=message):
        assistant_pair(CASE, assistant)


def test_assistant_refuses_another_family_and_named_taps(qwen3_pair: tuple[Path, Path]) -> None:
    caches = CacheSpec(32, torch.float32)
    checkpoints = resolve_checkpoints(
        ExportSpec(target_model="auto", target_dir=qwen3_pair[0], draft_dir=CASE / "assistant")
    )
    with pytest.raises(PairingError, match="of a Gemma 4 target, and of no other"):
        load_pair(checkpoints, torch.float32, caches)
    checkpoints = resolve_checkpoints(
        ExportSpec(
            target_model="auto",
            target_dir=CASE / "target",
            draft_dir=CASE / "assistant",
            tap_layers=(1, 2),
        )
    )
    with pytest.raises(SettingError, match="--tap-layers: an assistant reads"):
        load_pair(checkpoints, torch.float32, caches)


def test_every_token_must_be_in_one_cluster() -> None:
    assert clusters_of(torch.tensor([3, 0, 1, 2]), 2, "x").tolist() == [0, 1, 1, 0]
    with pytest.raises(EagleError, match="does not name every token once"):
        clusters_of(torch.tensor([3, 0, 1, 1]), 2, "x")
