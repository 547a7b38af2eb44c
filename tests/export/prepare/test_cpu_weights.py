"""Weights of pairs quantised for XNNPACK: their codes, and what they compute."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine

from eagle_aot.export import Pair, load_draft, run_check
from eagle_aot.export.prepare.cpu_weights import dequantize_for_eager, quantize_for_cpu
from eagle_aot.export.prepare.quantized_modules import (
    GROUP,
    DynamicLinear,
    Int8Table,
    QuantizedExpertLinears,
    QuantizedWeight,
    int4_by_groups,
    int8_by_rows,
)
from eagle_aot.targets import TARGETS, load_target
from eagle_aot.targets.decoder.experts import ExpertLinears, RouterLinear
from eagle_aot.targets.int4 import Int4Linear
from support.pairs import dummy

TOKENS, POSITIONS = torch.tensor([[5, 90, 7, 301]]), torch.arange(4)


@pytest.fixture(scope="module")
def pair() -> Pair:
    directory = TARGETS["gemma4-tiny"].draft_dir
    assert directory is not None
    target = load_target("gemma4-tiny", 64)
    return Pair(target, load_draft(directory, target, 64))


@torch.no_grad()
def logits(pair: Pair) -> Tensor:
    pair.reset_cache()
    return pair.target.forward_logits_taps(TOKENS, POSITIONS)[0]


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_copy_has_all_linears_and_tables_quantised(pair: Pair, kind: str) -> None:
    before = logits(pair)
    light = quantize_for_cpu(pair, kind)
    left = [m for m in light.modules() if isinstance(m, nn.Linear | nn.Embedding | Int4Linear)]
    assert not left
    assert {name.rpartition(".")[2]: m.bits for name, m in linears(light)} == {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), 8 if kind == "int8" else 4),
        **dict.fromkeys(("gate_proj", "up_proj", "down_proj", "fc"), 8 if kind == "int8" else 4),
        "lm_head": 8,
    }
    far = 0.1 if kind == "int8" else 0.3
    found = logits(light)
    assert 0 < (found - before).norm() < far * before.norm()
    torch.testing.assert_close(logits(dequantize_for_eager(light)), found)
    assert torch.equal(logits(pair), before)


def linears(pair: nn.Module) -> list[tuple[str, DynamicLinear]]:
    return [(n, m) for n, m in pair.named_modules() if isinstance(m, DynamicLinear)]


def test_a_tied_table_is_quantised_once(pair: Pair) -> None:
    light = quantize_for_cpu(pair, "int4")
    names = ["target.embed_tokens", "draft.embed_tokens", "target.lm_head"]
    tables = [light.get_submodule(name) for name in names]
    assert [type(table) for table in tables] == [Int8Table, Int8Table, DynamicLinear]
    assert len({table.get_parameter("weight_codes").data_ptr() for table in tables}) == 1


@pytest.mark.parametrize("quantise", [int8_by_rows, int4_by_groups])
@torch.no_grad()
def test_a_linear_multiplies_rounded_rows_with_a_rounded_weight(
    quantise: Callable[[Tensor], QuantizedWeight],
) -> None:
    """Rows are rounded each by itself, to 256 steps between its least and its largest value."""
    torch.manual_seed(0)
    weight, bias = torch.randn(24, 64), torch.randn(24)
    codes = quantise(weight)
    x = torch.randn(1, 5, 64) * torch.tensor([1e-3, 1.0, 100.0, 1.0, 7.0]).unsqueeze(-1)
    step = (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)) / 255
    zero = -128 - (x.amin(-1, keepdim=True) / step).round()
    rows = (((x / step).round() + zero).clamp(-128, 127) - zero) * step
    linear = DynamicLinear(codes, bias)
    expected = F.linear(rows, codes.dense(), bias)
    found = linear(x)
    assert ((found - expected).abs() <= 1e-4 * expected.abs().amax(-1, keepdim=True)).all()
    torch.testing.assert_close(linear.eager()(x), found)


@torch.no_grad()
def test_an_int8_table_returns_dense_rows() -> None:
    weight = torch.randn(40, 16)
    table = Int8Table(int8_by_rows(weight))
    assert torch.equal(table(TOKENS % 40), int8_by_rows(weight).dense()[TOKENS % 40])
    assert torch.equal(table.eager()(TOKENS % 40), table(TOKENS % 40))


@pytest.mark.parametrize("kind", [pytest.param("int8", marks=pytest.mark.slow), "int4"])
def test_a_quantised_dummy_keeps_the_graph_contract(kind: str) -> None:
    """Without a weight ever being materialised."""
    spec = dummy(
        "smollm2-135m", dummy_layers=3, backend="xnnpack", cpu_weights=kind, max_seq_len=128
    )
    assert set(run_check(spec)) == {"prefill", "target_verify", "draft_decode"}


SHAPES = st.tuples(st.integers(1, 300), st.integers(1, 4).map(lambda groups: GROUP * groups))
SEEDS = st.integers(0, 2**32 - 1)


def random_weight(shape: tuple[int, int], seed: int) -> Tensor:
    """Rows of very different sizes, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** torch.randint(-3, 3, (shape[0], 1), generator=generator)
    zero = torch.rand(shape[0], 1, generator=generator) < 0.1
    return torch.randn(shape, generator=generator) * sizes * ~zero


@settings(deadline=None, max_examples=25)
@given(shape=SHAPES, seed=SEEDS)
def test_int8_is_off_by_half_a_step_at_most(shape: tuple[int, int], seed: int) -> None:
    dense = random_weight(shape, seed)
    found = int8_by_rows(dense)
    steps, _ = choose_qparams_affine(
        dense, MappingType.SYMMETRIC, (1, shape[1]), torch.int8, -127, 127
    )
    filled = dense.abs().amax(1) > 0
    torch.testing.assert_close(found.scale[filled, 0], steps[filled])
    assert ((found.dense() - dense).abs() <= found.scale * 0.5001).all()
    assert found.group_size == shape[1]


@settings(deadline=None, max_examples=25)
@given(shape=SHAPES, seed=SEEDS)
def test_int4_is_no_worse_than_rounding(shape: tuple[int, int], seed: int) -> None:
    """With a scale that just holds the largest weight, as bfloat16 has it."""
    dense = random_weight(shape, seed)
    found = int4_by_groups(dense)
    assert found.codes.dtype == torch.int8
    assert -8 <= int(found.codes.min()) <= int(found.codes.max()) <= 7
    assert torch.equal(found.scale, found.scale.to(torch.bfloat16).float())
    assert (found.scale > torch.finfo(torch.float32).tiny).all()
    groups = dense.unflatten(1, (-1, GROUP))
    holding = torch.maximum(groups.amax(-1) / 7, groups.amin(-1) / -8).clamp(min=1e-30)
    scale = holding.to(torch.bfloat16).float().unsqueeze(-1)
    rounded = (groups / scale).round().clamp(-8, 7) * scale
    worst = (rounded - groups).square().sum(-1)
    error = (found.dense().unflatten(1, (-1, GROUP)) - groups).square().sum(-1)
    assert (error <= worst * 1.0001).all()


@pytest.mark.parametrize("quantise", [int8_by_rows, int4_by_groups])
def test_zeros_stay_zeros(quantise: Callable[[Tensor], QuantizedWeight]) -> None:
    found = quantise(torch.zeros(3, GROUP))
    assert not found.dense().any()
    assert found.scale.isfinite().all()


@pytest.mark.parametrize(("kind", "columns", "bits"), [
    ("int8", 64, 8), ("int4", 64, 4), ("int4", 40, 8),
])  # fmt: skip
def test_experts_are_quantised_one_by_one(kind: str, columns: int, bits: int) -> None:
    """INT4 columns are whole groups, or the weight is INT8."""
    torch.manual_seed(0)
    dense = ExpertLinears(torch.randn(3, 24, columns))
    light = quantize_for_cpu(nn.ModuleDict({"experts": dense}), kind)["experts"]
    assert isinstance(light, QuantizedExpertLinears)
    assert light.bits == bits and light.sizes == dense.sizes
    stored = light.weight_codes.nbytes / dense.weight.numel()
    assert stored == bits / 8
    eager = dequantize_for_eager(nn.ModuleDict({"experts": light}))["experts"]
    for expert in range(3):
        weight = dense.weight[expert]
        expected = (int4_by_groups if bits == 4 else int8_by_rows)(weight).dense()
        x, number = torch.randn(columns), torch.tensor([expert])
        torch.testing.assert_close(light(x, number), expected @ x)
        torch.testing.assert_close(eager(x, number), expected @ x)


def test_routers_keep_their_weights() -> None:
    router = RouterLinear(64, 4)
    light = quantize_for_cpu(nn.ModuleDict({"router": router}), "int4")["router"]
    assert isinstance(light, RouterLinear) and torch.equal(light.weight, router.weight)
