"""A pair whose linears and tables are quantised for XNNPACK, before any program is made of it."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_aot.common.errors import SettingError
from eagle_aot.export import ExportSpec, Pair, load_draft, run_check
from eagle_aot.export.prepare.cpu_weights import dequantize_for_eager, quantize_for_cpu
from eagle_aot.export.prepare.quantized_modules import (
    DynamicLinear,
    Int8Table,
    QuantizedWeight,
    int4_by_groups,
    int8_by_rows,
)
from eagle_aot.targets import TARGETS, load_target
from eagle_aot.targets.int4 import Int4Linear

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
    tables = [light.target.embed_tokens, light.draft.embed_tokens, light.target.lm_head]
    assert isinstance(tables[0], Int8Table)
    assert isinstance(tables[2], DynamicLinear)
    assert len({table.weight_codes.data_ptr() for table in tables}) == 1


@pytest.mark.parametrize("quantise", [int8_by_rows, int4_by_groups])
@torch.no_grad()
def test_a_linear_multiplies_rounded_rows_with_a_rounded_weight(quantise: object) -> None:
    """Rows are rounded each by itself, to 256 steps between its least and its largest value."""
    assert callable(quantise)
    torch.manual_seed(0)
    weight, bias = torch.randn(24, 64), torch.randn(24)
    codes: QuantizedWeight = quantise(weight)
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


def test_cpu_weights_are_refused_for_cuda() -> None:
    with pytest.raises(SettingError, match=r"^--cpu-weights int8: is for XNNPACK; leave it out"):
        ExportSpec(backend="cuda", cpu_weights="int8")
    with pytest.raises(SettingError, match=r"^--cpu-weights int3: must be one of"):
        ExportSpec(cpu_weights="int3")


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_quantised_dummy_keeps_the_graph_contract(kind: str) -> None:
    """Without a weight ever being materialised."""
    programs = run_check(
        ExportSpec(
            target_model="smollm2-135m",
            load_format="dummy",
            dummy_layers=4,
            backend="xnnpack",
            cpu_weights=kind,
            max_seq_len=128,
        )
    )
    assert set(programs) == {"prefill", "target_verify", "draft_decode"}
