"""Where a pair comes from: a line of the table, or whatever config.json says."""

from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

from eagle_aot.common.errors import CheckpointNotFoundError, SettingError, UnsupportedError
from eagle_aot.export import ExportSpec, load_pair, resolve_checkpoints
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.gemma_oracle import VOCAB, random_gemma, save_text_layout, write_config
from support.heads.files import HeadShape, write_speculators
from support.pre_norm_oracle import random_pre_norm, save


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return write_speculators(tmp_path / "head", HeadShape(vocab=VOCAB), [0, 1, 3])


@pytest.mark.parametrize("model_type", ["gemma4_text", "qwen3", "llama"])
def test_auto_is_the_model_type_of_the_config(tmp_path: Path, head: Path, model_type: str) -> None:
    if model_type == "gemma4_text":
        directory = save_text_layout(random_gemma(), tmp_path / "target")
    else:
        directory = save(random_pre_norm(model_type), tmp_path / "target")
    checkpoints = resolve_checkpoints(
        ExportSpec(target_model="auto", target_dir=directory, draft_dir=head)
    )
    assert checkpoints.spec.target_model == model_type
    pair = load_pair(checkpoints, torch.float32, CacheSpec(32, torch.float32)).pair
    assert pair.target.num_hidden_layers == 4


def test_auto_names_the_families_it_knows(tmp_path: Path, head: Path) -> None:
    directory = save(random_pre_norm("llama"), tmp_path / "target")
    write_config(directory, {"model_type": "mamba"})
    with pytest.raises(UnsupportedError, match=r"'mamba'; known: gemma4, .*, qwen3, llama"):
        resolve_checkpoints(ExportSpec(target_model="auto", target_dir=directory, draft_dir=head))


def test_auto_needs_a_checkpoint(tmp_path: Path, head: Path) -> None:
    with pytest.raises(SettingError, match="--target-dir is needed: auto is read from a directory"):
        resolve_checkpoints(ExportSpec(target_model="auto", draft_dir=head))
    with pytest.raises(CheckpointNotFoundError, match="no such checkpoint directory"):
        resolve_checkpoints(
            ExportSpec(target_model="auto", target_dir=tmp_path / "none", draft_dir=head)
        )
    with pytest.raises(SettingError, match="auto has no geometry of its own, name a target"):
        resolve_checkpoints(ExportSpec(target_model="auto", load_format="dummy"))


@pytest.mark.parametrize(
    ("name", "layers", "taps"),
    [
        ("gemma4-31b", None, (2, 30, 57)),
        ("llama-3.1-8b", None, (2, 16, 29)),
        ("qwen3-8b", 6, (1, 3, 4)),
        ("qwen3-8b", 3, (0, 1, 2)),
    ],
)
def test_a_dummy_head_repeats_its_targets_layer(
    name: str, layers: int | None, taps: tuple[int, ...]
) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        pair = load_pair(
            resolve_checkpoints(
                ExportSpec(target_model=name, load_format="dummy", dummy_layers=layers)
            ),
            torch.bfloat16,
            CacheSpec(32, torch.bfloat16),
        ).pair
    head, target = pair.draft.config, pair.target
    assert (head.tap_layers, head.draft_vocab_size) == (taps, 32000)
    assert (head.hidden_size, head.vocab_size) == (target.hidden_size, target.vocab_size)
    gate = target.get_submodule("layers.0.mlp.gate_proj")
    assert head.intermediate_size == gate.out_features


def test_a_dummy_too_short_for_three_taps_is_refused() -> None:
    checkpoints = resolve_checkpoints(
        ExportSpec(target_model="qwen3-0.6b", load_format="dummy", dummy_layers=2)
    )
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(SettingError, match="taps 3 layers, so at least 3"),
    ):
        load_pair(checkpoints, torch.bfloat16, CacheSpec(32, torch.bfloat16))
