"""A whole target's INT4 weights, packed."""

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export import ExportSpec, resolve_checkpoints
from eagle_aot.export.loading.load import load_pair
from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import replace_linear
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.int4 import Int4Linear, PackedInt4Linear
from eagle_aot.targets.int4.linear import PackedModule
from eagle_aot.targets.int4.weight import random_int4
from support.gemma_oracle import run_in_chunks

TAPS = [1, 3, 6]


@pytest.fixture
def target() -> TapTarget:
    """The shipped target as a CUDA export loads it."""
    target = load_target("gemma4-tiny", max_seq_len=64, dtype=torch.bfloat16)
    target.set_eagle_tap_layers(TAPS)
    return target


def module(target: TapTarget) -> nn.Module:
    return cast(nn.Module, target)


def packed_target(target: TapTarget) -> TapTarget:
    """For which `target` is given up."""
    return cast(TapTarget, pack_int4(module(target), 132))


def outputs(target: TapTarget) -> tuple[Tensor, Tensor]:
    """Of a prompt, rows that are verified, and single ones."""
    tokens = torch.arange(3, 43)[None]
    target.reset_cache()
    return run_in_chunks(target, tokens, [20, 8, 5, 1])


def test_a_packed_target_computes_what_it_did(target: TapTarget) -> None:
    expected = outputs(target)
    target = packed_target(target)
    kinds = [type(m).__name__ for m in module(target).modules() if isinstance(m, PackedModule)]
    assert sorted(set(kinds)) == ["PackedGatedInt4", "PackedInt4Linear", "PackedProjections"]
    assert len(kinds) == 4 * 6
    assert all(torch.equal(a, b) for a, b in zip(outputs(target), expected, strict=True))


def test_no_linear_outlives_its_packing(target: TapTarget) -> None:
    linears = [m for m in module(target).modules() if isinstance(m, Int4Linear)]
    gone = [weakref.ref(tensor) for linear in linears for tensor in linear.buffers()]
    assert len(gone) == 3 * 41
    del linears
    target = packed_target(target)
    assert not any(tensor() is not None for tensor in gone)
    names = set(module(target).state_dict())
    assert not any(name.endswith((".qdata", ".scale", ".zero_point")) for name in names)


def test_packing_a_packed_target_changes_nothing(target: TapTarget) -> None:
    once = packed_target(target)
    before = [(n, type(m)) for n, m in module(once).named_modules()], dict(state(once))
    twice = packed_target(once)
    assert [(n, type(m)) for n, m in module(twice).named_modules()] == before[0]
    assert all(tensor is before[1][name] for name, tensor in state(twice))


def state(target: TapTarget) -> Iterator[tuple[str, Tensor]]:
    yield from module(target).named_parameters()
    yield from module(target).named_buffers()


def test_packing_consumes_the_target_and_leaves_its_layers(target: TapTarget) -> None:
    layer = module(target).get_submodule("layers.0.mlp")
    before = dict(layer.named_modules())
    packed = packed_target(target)
    assert not list(module(target).children()) and list(module(packed).children())
    assert dict(layer.named_modules()) == before
    assert isinstance(layer.down_proj, Int4Linear)


def test_packing_keeps_the_names_of_other_modules(target: TapTarget) -> None:
    def others() -> set[str]:
        int4 = (Int4Linear, PackedModule)
        owners = dict(module(target).named_modules())
        names = module(target).state_dict()
        return {n for n in names if not isinstance(owners[n.rpartition(".")[0]], int4)}

    before = others()
    target = packed_target(target)
    assert others() == before


def test_a_layer_that_is_partly_dense_is_packed_one_by_one(target: TapTarget) -> None:
    expected = outputs(target)
    name = "layers.0.self_attn.k_proj"
    linear = module(target).get_submodule(name)
    assert isinstance(linear, Int4Linear)
    replace_linear(module(target), name, linear.dense())
    target = packed_target(target)
    layer = module(target).get_submodule("layers.0.self_attn")
    assert isinstance(layer.q_proj, PackedInt4Linear) and isinstance(layer.k_proj, nn.Linear)
    assert all(torch.equal(a, b) for a, b in zip(outputs(target), expected, strict=True))


def test_an_output_table_can_be_packed_and_read(target: TapTarget) -> None:
    """Heads may share it, densely."""
    assert isinstance(target, Gemma4Target)
    target.config = replace(target.config, tie_word_embeddings=False)
    target.lm_head = Int4Linear(random_int4(1024, 256, 32, torch.bfloat16), torch.bfloat16)
    table, expected = target.lm_head_weight, outputs(target)
    target = pack_int4(target, 132)
    assert isinstance(target, Gemma4Target)
    assert isinstance(target.lm_head, PackedInt4Linear)
    assert torch.equal(target.lm_head_weight, table)
    assert all(torch.equal(a, b) for a, b in zip(outputs(target), expected, strict=True))


def test_weights_without_values_are_packed_without_values() -> None:
    checkpoints = resolve_checkpoints(ExportSpec(target_model="gemma4-tiny", load_format="dummy"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        pair = load_pair(checkpoints, torch.bfloat16, CacheSpec(64, torch.bfloat16)).pair
        pair = pack_int4(pair, 132)
    packed = [m for m in pair.modules() if isinstance(m, PackedModule)]
    assert len(packed) == 4 * 6
    assert all(isinstance(weight, FakeTensor) for m in packed for weight in m.parameters())


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            16,
            r"^layers\.2\.mlp\.up_proj: INT4 with groups of 16 columns, .* use --backend xnnpack$",
        ),
        (None, r"^layers\.0\.self_attn\.q_proj: INT4 with float32 scales, .* in bfloat16: load it"),
    ],
)
def test_a_weight_that_no_kernel_reads_is_named_before_anything_is_changed(
    group: int | None, message: str
) -> None:
    dtype = torch.float32 if group is None else torch.bfloat16
    target = module(load_target("gemma4-tiny", max_seq_len=64, dtype=dtype))
    if group is not None:
        weight = random_int4(1024, 256, group, dtype)
        replace_linear(target, "layers.2.mlp.up_proj", Int4Linear(weight, dtype))
    with pytest.raises(UnsupportedError, match=message) as failure:
        pack_int4(target, 132)
    assert "\n" not in str(failure.value)
    assert not any(isinstance(m, PackedModule) for m in target.modules())
