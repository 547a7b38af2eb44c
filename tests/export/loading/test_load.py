"""Loading a pair: of a named target, of the family in config.json, dummies, and `--quantize`."""

from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

from eagle_aot.common.errors import SettingError, UnsupportedError
from eagle_aot.export import ExportSpec, resolve_checkpoints
from eagle_aot.export.spec import Scheme
from eagle_aot.targets.int4 import Int4Linear
from support.gemma_oracle import VOCAB, random_gemma, save_text_layout, write_config
from support.heads.files import HeadShape, write_speculators
from support.pairs import dummy, head_of, load, target_of
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
    assert load(checkpoints.spec).pair.target.num_hidden_layers == 4


def test_auto_names_the_families_it_knows(tmp_path: Path, head: Path) -> None:
    directory = save(random_pre_norm("llama"), tmp_path / "target")
    write_config(directory, {"model_type": "mamba"})
    with pytest.raises(UnsupportedError, match=r"'mamba'; known: gemma4, .*, qwen3, llama"):
        resolve_checkpoints(ExportSpec(target_model="auto", target_dir=directory, draft_dir=head))


def test_auto_needs_a_checkpoint(head: Path) -> None:
    with pytest.raises(SettingError, match="--target-dir is needed: auto is read from a directory"):
        resolve_checkpoints(ExportSpec(target_model="auto", draft_dir=head))
    with pytest.raises(SettingError, match="auto has no geometry of its own, name a target"):
        resolve_checkpoints(dummy("auto"))


@pytest.mark.parametrize(("name", "layers", "taps"), [
    ("gemma4-31b", None, (2, 30, 57)),
    ("llama-3.1-8b", None, (2, 16, 29)),
    ("qwen3-8b", 6, (1, 3, 4)),
    ("qwen3-8b", 3, (0, 1, 2)),
])  # fmt: skip
def test_a_dummy_head_repeats_its_targets_layer(
    name: str, layers: int | None, taps: tuple[int, ...]
) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        pair = load(dummy(name, dummy_layers=layers), torch.bfloat16).pair
    head, target = head_of(pair).config, pair.target
    assert (head.tap_layers, head.draft_vocab_size) == (taps, 32000)
    assert (head.hidden_size, head.vocab_size) == (target.hidden_size, target.vocab_size)
    gate = target_of(pair).get_submodule("layers.0.mlp.gate_proj")
    assert head.intermediate_size == gate.out_features


def test_a_dummy_too_short_for_three_taps_is_refused() -> None:
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(SettingError, match="taps 3 layers, so at least 3"),
    ):
        load(dummy("qwen3-0.6b", dummy_layers=2), torch.bfloat16)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    model = random_gemma(hidden_size=64, intermediate_size=96, head_dim=16, global_head_dim=32)
    head = write_speculators(tmp_path / "head", HeadShape(vocab=VOCAB, target_hidden=64), [0, 1, 3])
    return save_text_layout(model, tmp_path / "target"), head


@pytest.mark.parametrize("scheme", ["int4-g32-hqq", None])
def test_decoder_linears_become_int4_on_request_alone(
    pair: tuple[Path, Path], scheme: Scheme | None
) -> None:
    spec = ExportSpec(target_model="auto", target_dir=pair[0], draft_dir=pair[1], quantize=scheme)
    target = target_of(load(spec, torch.bfloat16).pair)
    linears = [m for m in target.modules() if isinstance(m, Int4Linear)]
    assert len(linears) == (26 if scheme else 0)
    assert all(m.group_size == 32 and m.scale.dtype == torch.bfloat16 for m in linears)


def test_a_dummy_is_refused() -> None:
    with pytest.raises(SettingError, match="--quantize: a dummy is INT4 already"):
        resolve_checkpoints(dummy("gemma4-31b", quantize="int4-g32"))
