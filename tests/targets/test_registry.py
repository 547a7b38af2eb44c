"""The table of supported targets."""

from inspect import getattr_static
from math import prod
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from eagle_aot.common.errors import SettingError
from eagle_aot.targets import TARGETS, TapTarget, get_target, load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.experts import Int4ExpertLinears
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.registry import LOADERS
from support.pre_norm_oracle import random_pre_norm, save


def test_an_unknown_name_is_refused_with_the_list_of_known_names() -> None:
    with pytest.raises(SettingError, match=r"unknown target 'gemma5'.*gemma4-tiny, gemma4-31b"):
        get_target("gemma5")


@pytest.mark.parametrize("name", ["no-such-thing", "gemma4-31b"])
def test_a_name_without_a_checkpoint_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match=r"neither a checkpoint directory nor .*\(gemma4-tiny\)"):
        load_target(name)


def test_every_entry_has_its_own_name_and_existing_shipped_files() -> None:
    for name, spec in TARGETS.items():
        assert spec.name == name
        assert spec.summary
        for shipped in (spec.target_dir, spec.draft_dir):
            assert shipped is None or (shipped / "config.json").is_file()
        assert spec.target_dir is None or spec.draft_dir is not None
    heads = {name for name, spec in TARGETS.items() if spec.draft_dir}
    assert heads == {"gemma4-tiny", "smollm2-135m"}


@pytest.mark.parametrize("dummy", [True, False])
def test_the_shipped_target_is_a_tap_target_of_the_expected_sizes(dummy: bool) -> None:
    spec = get_target("gemma4-tiny")
    assert spec.dummy is not None
    target = load_target("gemma4-tiny", 32)
    if dummy:
        target = spec.dummy(torch.float32, CacheSpec(32, torch.float32), None)
    assert isinstance(target, TapTarget) and isinstance(target, nn.Module)
    for name in TapTarget.__annotations__:
        getattr_static(target, name)  # Python 3.12's isinstance finds no buffers or submodules
    assert not target.training
    sizes = target.max_seq_len, target.vocab_size, target.hidden_size, target.num_hidden_layers
    assert sizes == (32, 1024, 256, 6)
    assert target.embed_weight.shape == target.lm_head_weight.shape == (1024, 256)
    assert not isinstance(nn.Linear(1, 1), TapTarget)


SIMILAR = [
    ("gemma4-12b", 11.9), ("qwen3-1.7b", 1.7), ("qwen3-4b", 4.0), ("qwen3-8b", 8.2),
    ("qwen3-14b", 14.8), ("qwen3-32b", 32.8), ("qwen3.5-4b", 4.21), ("qwen3.5-9b", 8.95),
    ("qwen3.6-27b", 26.9), ("qwen3.8-27b", 26.9), ("llama-3.2-1b", 1.24),
    ("llama-3.3-70b", 70.6), ("qwen2.5-0.5b", 0.494),
]  # fmt: skip
"""Geometries that have a sibling among the others."""


@pytest.mark.parametrize(("name", "billions"), [
    ("gemma4-31b", 30.7), ("gemma4-26b-a4b", 25.2), ("qwen3-0.6b", 0.6), ("qwen3-30b-a3b", 30.5),
    ("qwen3.5-27b", 26.9), ("llama-3.1-8b", 8.0), ("smollm2-135m", 0.135), ("qwen2.5-7b", 7.61),
    ("mistral-7b", 7.25), ("phi-4-mini", 3.84),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in SIMILAR),
])  # fmt: skip
def test_published_geometries_have_the_published_number_of_parameters(
    name: str, billions: float
) -> None:
    spec = get_target(name)
    assert spec.dummy is not None
    with FakeTensorMode(allow_non_fake_inputs=True):
        target = spec.dummy(torch.bfloat16, CacheSpec(16, torch.bfloat16), None)
    assert isinstance(target, nn.Module)
    linears = sum(m.in_features * m.out_features for m in target.modules()
                  if isinstance(m, Int4Linear))  # fmt: skip
    linears += sum(prod(m.sizes) for m in target.modules() if isinstance(m, Int4ExpertLinears))
    count = linears + sum(parameter.numel() for parameter in target.parameters())
    assert count / 1e9 == pytest.approx(billions, rel=0.02)


def test_a_model_type_loads_checkpoints_of_any_geometry(tmp_path: Path) -> None:
    directory = save(random_pre_norm("qwen3"), tmp_path)
    for name in ("qwen3", "auto"):
        spec = get_target(name)
        assert (spec.name, spec.dummy, spec.target_dir) == (name, None, None)
        assert (
            spec.load(
                Checkpoint(directory), torch.float32, CacheSpec(16, torch.float32)
            ).num_hidden_layers
            == 4
        )
    assert not set(LOADERS) & set(TARGETS)


def test_a_dummy_may_have_only_the_first_layers() -> None:
    spec = get_target("gemma4-tiny")
    assert spec.dummy is not None
    assert spec.dummy(torch.float32, CacheSpec(32, torch.float32), 2).num_hidden_layers == 2
    for layers in (0, 7):
        with pytest.raises(SettingError, match=f"--dummy-layers {layers}: the target has 6 layers"):
            spec.dummy(torch.float32, CacheSpec(32, torch.float32), layers)
