"""Branches that join the residual stream: in parts where the product that ends them is packed."""

from typing import cast

import pytest
import torch
from torch import Tensor, nn

from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.decoder.layer import ResidualLayer
from eagle_aot.targets.decoder.weights import replace_linear
from eagle_aot.targets.int4 import Int4Linear, PackedInt4Linear
from support.gemma_oracle import run_in_chunks
from support.tiny_graphs import tiny_graphs

LAYERS = 6


@pytest.fixture
def target() -> TapTarget:
    """The shipped target as a CUDA export loads it."""
    target = load_target("gemma4-tiny", max_seq_len=64, dtype=torch.bfloat16)
    target.set_eagle_tap_layers([1, 3, 6])
    return target


def outputs(target: TapTarget) -> tuple[Tensor, Tensor]:
    target.reset_cache()
    return run_in_chunks(target, torch.arange(3, 43)[None], [20, 8, 5, 1])


@pytest.mark.parametrize(("backend", "joins"), [("cuda", 2 * LAYERS), ("xnnpack", 0)])
def test_each_residual_branch_is_one_operator_on_a_gpu(backend: str, joins: int) -> None:
    operator = torch.ops.eagle_aot.residual_norm.default
    counts = {
        method: [node.target for node in program.graph.nodes].count(operator)
        for method, program in tiny_graphs(backend).items()
    }
    assert {counts.pop(method) for method in ("prefill", "target_verify")} == {joins}
    assert set(counts.values()) == {0}


def test_only_packed_branch_ends_return_parts(target: TapTarget) -> None:
    module = cast(nn.Module, target)
    assert len([m for m in module.modules() if isinstance(m, ResidualLayer)]) == LAYERS
    module = pack_int4(module, 132)
    packed = {n: m for n, m in module.named_modules() if isinstance(m, PackedInt4Linear)}
    in_parts = {name for name, linear in packed.items() if linear.returns_parts}
    ends = {n for n in packed if n.endswith(("self_attn.o_proj", "mlp.down_proj"))}
    assert in_parts == ends and len(ends) == 2 * LAYERS


def test_a_dense_branch_end_is_added_whole(target: TapTarget) -> None:
    """One layer's output projection is not INT4."""
    module = cast(nn.Module, target)
    name = "layers.2.self_attn.o_proj"
    linear = module.get_submodule(name)
    assert isinstance(linear, Int4Linear)
    replace_linear(module, name, linear.dense())
    expected = outputs(target)
    packed = pack_int4(module, 132)
    assert isinstance(packed.get_submodule(name), nn.Linear)
    found = outputs(cast(TapTarget, packed))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
