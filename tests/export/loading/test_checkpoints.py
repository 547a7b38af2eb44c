"""Resolving the checkpoints of a spec, and refused options; loading a pair."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from eagle_aot.common.errors import CheckpointNotFoundError, SettingError, UnsupportedError
from eagle_aot.export import ExportSpec, resolve_checkpoints
from eagle_aot.export.spec import Scheme
from eagle_aot.targets import TARGETS, get_target
from eagle_aot.targets.int4 import Int4Linear
from support.gemma_oracle import VOCAB, random_gemma, save_text_layout, write_config
from support.heads.files import HeadShape, write_speculators
from support.pairs import dummy, head_of, load, target_of
from support.pre_norm_oracle import random_pre_norm, save

TINY = TARGETS["gemma4-tiny"]


def resolved(target_model: str = "gemma4-tiny", **options: Any) -> ExportSpec:
    return resolve_checkpoints(ExportSpec(target_model=target_model, **options)).spec


def test_checkpoints_are_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--target-model is required"):
        resolve_checkpoints(ExportSpec())
    with pytest.raises(SettingError, match="--target-dir is needed: qwen3"):
        resolved("qwen3")
    with pytest.raises(FileNotFoundError, match=r"--draft-dir .*gone: no such"):
        resolved(draft_dir=tmp_path / "gone")
    with pytest.raises(CheckpointNotFoundError, match=r"holds no config\.json, so it is no draft"):
        resolved(draft_dir=tmp_path)
    with pytest.raises(CheckpointNotFoundError, match=r"--target-dir .*gone: no such"):
        resolved(target_dir=tmp_path / "gone")
    assert resolved("gemma4-31b", load_format="dummy").target_dir is None
    with pytest.raises(SettingError, match="--dummy-layers: a checkpoint has its own"):
        resolved(dummy_layers=2)


def test_shipped_head_is_the_default() -> None:
    shipped = resolved()
    assert (shipped.target_dir, shipped.draft_dir) == (TINY.target_dir, TINY.draft_dir)
    assert shipped.has_head
    alone = resolved(drafter="ngram")
    assert (alone.target_dir, alone.draft_dir) == (TINY.target_dir, None)
    assert not alone.has_head


def test_head_that_ships_alone_drafts_for_the_target_of_its_name(tmp_path: Path) -> None:
    target = save(random_pre_norm("llama"), tmp_path)
    head = get_target("smollm2-135m").draft_dir
    assert resolved("smollm2-135m", target_dir=target).draft_dir == head
    for name, drafter in (("smollm2-135m", "ngram"), ("auto", "auto"), ("llama-3.2-1b", "auto")):
        assert not resolved(name, target_dir=target, drafter=drafter).has_head


def test_target_without_a_head_uses_ngram() -> None:
    alone = resolved(target_dir=TINY.target_dir)
    assert (alone.draft_dir, alone.drafter, alone.has_head) == (None, "ngram", False)
    assert resolved(target_dir=TINY.target_dir, drafter=alone.drafter) == alone


@pytest.mark.parametrize("drafter", ["auto", "eagle3"])
def test_head_that_is_named_drafts(drafter: str) -> None:
    spec = resolved(target_dir=TINY.target_dir, draft_dir=TINY.draft_dir, drafter=drafter)
    assert spec.has_head and spec.draft_dir == TINY.draft_dir


@pytest.mark.parametrize(("requested", "expected"), [("auto", "eagle3"), ("ngram", "ngram")])
def test_dummy_has_a_head_unless_ngram_is_requested(requested: str, expected: str) -> None:
    assert resolved("gemma4-31b", load_format="dummy", drafter=requested).drafter == expected


@pytest.mark.parametrize(("options", "message"), [
    ({"drafter": "eagle3"}, "--draft-dir is needed: eagle3 is read from"),
    ({"drafter": "telepathy"}, "--drafter telepathy: must be one of auto, "),
    (
        {"drafter": "ngram", "draft_dir": TINY.draft_dir},
        "--drafter ngram reads no head: leave out --draft-dir",
    ),
    ({"tap_layers": (1, 2, 3)}, "--tap-layers: there is no head, name one with --draft-dir"),
    ({"draft_quant": "int8"}, "--draft-quant: there is no head, name one with --draft-dir"),
])  # fmt: skip
def test_options_of_a_head_need_a_head(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        resolved(target_dir=TINY.target_dir, **options)


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
    with pytest.raises(UnsupportedError, match=r"'mamba'; known: gemma4, .*qwen3, .*qwen2, llama"):
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


@pytest.mark.parametrize(("name", "drafter"), [
    ("gemma4-31b", "eagle3"), ("gemma4-31b", "dflash2"),
    ("qwen3.5-4b", "mtp"), ("qwen3-30b-a3b", "ngram"),
])  # fmt: skip
def test_no_weight_of_a_pair_has_a_gradient(name: str, drafter: Any) -> None:
    """Lowering fails for graphs with branches otherwise, as those of recurrent layers are."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        pair = load(dummy(name, dummy_layers=6, drafter=drafter), torch.bfloat16).pair
    assert [name for name, weight in pair.named_parameters() if weight.requires_grad] == []


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
