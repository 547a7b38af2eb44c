"""`--draft-quant`: the weights of a head that are stored in fewer bits, and their results."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export import ExportSpec, Pair, run_check
from eagle_aot.export.drafters.eagle3.config import DraftConfig
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.loading.quantise import quantise_draft
from eagle_aot.export.prepare.int4 import dequantize_int4, pack_int4
from eagle_aot.export.spec import Quant
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.int4 import Biased, Int4Linear
from eagle_aot.targets.int4.linear import PackedModule
from eagle_aot.targets.int4.quantisers import QUANTS
from support.gemma_oracle import VOCAB, random_gemma, save_text_layout
from support.heads.files import (
    HeadShape,
    head_tensors,
    safeailab_config,
    write_head,
    write_speculators,
)
from support.pairs import dummy, head_of, int4_calls, load, short_dummy, target_of

LAYER = {f"self_attn.{n}_proj" for n in "qkvo"} | {f"mlp.{n}_proj" for n in ("gate", "up", "down")}
ALL = {f"layers.0.{name}" for name in LAYER} | {"fc", "lm_head"}
SHAPE = HeadShape(vocab=VOCAB, target_hidden=64, inner=64)
KINDS: list[Quant] = ["int8", "int4"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = random_gemma(hidden_size=64, intermediate_size=96, head_dim=16, global_head_dim=32)
    return save_text_layout(model, tmp_path_factory.mktemp("target"))


def load_with_head(
    target: Path, head: Path, kind: Quant, dtype: torch.dtype = torch.float32
) -> Pair:
    spec = ExportSpec(target_model="auto", target_dir=target, draft_dir=head, draft_quant=kind)
    return load(spec, dtype).pair


def linears(pair: Pair, kind: type[nn.Module]) -> set[str]:
    return {n for n, module in head_of(pair).named_modules() if isinstance(module, kind)}


def drafts(pair: Pair, rows: int) -> tuple[Tensor, Tensor]:
    """Logits and recurrent features of `rows` slots after a reset."""
    draft, generator = head_of(pair), torch.Generator().manual_seed(rows)
    draft.reset_cache()
    tokens = torch.randint(VOCAB, (1, rows), generator=generator)
    width = draft.config.num_taps * draft.config.target_hidden_size
    taps = torch.randn(1, rows, width, generator=generator).to(draft.embed_tokens.weight.dtype)
    with torch.no_grad():
        feature = draft.fuse(taps)
        return draft.forward_cached(draft.embed(tokens), feature, torch.arange(rows))


@pytest.mark.parametrize("kind", QUANTS)
def test_every_linear_of_the_head_is_quantised(target: Path, tmp_path: Path, kind: Quant) -> None:
    pair = load_with_head(target, write_speculators(tmp_path / "head", SHAPE, [0, 1, 3]), kind)
    assert linears(pair, Int4Linear) == (set() if kind == "none" else ALL)
    assert linears(pair, nn.Linear) == (ALL if kind == "none" else set())
    assert isinstance(head_of(pair).embed_tokens, nn.Embedding)
    assert not any(isinstance(m, Int4Linear) for m in target_of(pair).modules())


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_is_the_targets_stays_the_targets(
    target: Path, tmp_path: Path, kind: Quant
) -> None:
    shape = HeadShape(vocab=VOCAB, hidden=64, target_hidden=64, draft_vocab=VOCAB)
    tensors = head_tensors(shape)
    for name in ("lm_head.weight", "embed_tokens.weight", "d2t"):
        del tensors[name]
    config = safeailab_config(shape, eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 4]})
    pair = load_with_head(target, write_head(tmp_path / "head", tensors, config), kind)
    table = pair.target.lm_head_weight
    assert linears(pair, nn.Linear) >= {"lm_head"}
    assert head_of(pair).lm_head.weight.data_ptr() == table.data_ptr()
    assert "fc" in linears(pair, Int4Linear)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_are_no_whole_groups_stay_dense(
    target: Path, tmp_path: Path, kind: Quant
) -> None:
    shape = HeadShape(vocab=VOCAB, target_hidden=64, inner=48)
    pair = load_with_head(target, write_speculators(tmp_path / "head", shape, [0, 1, 3]), kind)
    assert linears(pair, nn.Linear) == {"layers.0.mlp.down_proj"}


def test_a_head_without_a_linear_of_whole_groups_is_refused() -> None:
    config = DraftConfig(
        hidden_size=24, target_hidden_size=24, num_taps=3, vocab_size=50, draft_vocab_size=50,
        intermediate_size=40, num_heads=3, num_kv_heads=1, head_dim=8, norm_before_residual=True,
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="--draft-quant int4: no linear of the head has a"):
        head = Eagle3Draft(config, torch.float32, CacheSpec(16, torch.float32))
        quantise_draft(head, nn.Module(), "int4")  # type: ignore[arg-type]


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_folded_linears_compute_the_same(
    target: Path, tmp_path: Path, kind: Quant, biases: bool
) -> None:
    shape = HeadShape(vocab=VOCAB, target_hidden=64, inner=64, biases=biases, num_layers=2)
    pair = load_with_head(target, write_speculators(tmp_path / "head", shape, [0, 1, 3]), kind)
    assert bool(linears(pair, Biased)) == biases
    expected = drafts(pair, 6)
    folded = dequantize_int4(pair)
    assert not linears(folded, Int4Linear)
    for found, wanted in zip(drafts(folded, 6), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_linears_compute_the_same(
    target: Path, tmp_path: Path, kind: Quant, biases: bool
) -> None:
    """Bit for bit, on both sides of the dispatch; gate and up are one product, unless biased."""
    shape = HeadShape(vocab=VOCAB, target_hidden=64, inner=64, biases=biases, num_layers=2)
    head = write_speculators(tmp_path / "head", shape, [0, 1, 3])
    pair = load_with_head(target, head, kind, torch.bfloat16)
    expected = [drafts(pair, rows) for rows in (1, 8, 20)]
    pair = pack_int4(pair, 132)
    packed = {n: m for n, m in head_of(pair).named_modules() if isinstance(m, PackedModule)}
    assert len(packed) == 2 + 2 * (5 if biases else 4)
    for rows, wanted in zip((1, 8, 20), expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(drafts(pair, rows), wanted, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "biases"), [("int8", True), ("int4", False)])
def test_the_graphs_of_a_checkpoint_keep_the_contract(
    target: Path, tmp_path: Path, kind: Quant, biases: bool
) -> None:
    shape = HeadShape(vocab=VOCAB, target_hidden=64, inner=64, biases=biases)
    head = write_speculators(tmp_path / "head", shape, [0, 1, 3])
    spec = ExportSpec(
        target_model="auto", target_dir=target, draft_dir=head, draft_quant=kind,
        max_seq_len=128, max_prefill=72,
    )  # fmt: skip
    programs = run_check(spec)
    inside = 6 if biases else 5
    assert [int4_calls(p) for p in programs.values()] == [(0, 1), (1, 0), (inside, 0)]


def test_the_graphs_of_the_31b_keep_the_contract() -> None:
    """Its first layers have every shape of the others: five sliding ones and a full one.

    `fc` goes with the target's products; of the head's layer four, and its output table. Of a
    prompt its keys and values are one product."""
    programs = run_check(dummy("gemma4-31b", dummy_layers=6, draft_quant="int4"))
    calls = [int4_calls(program) for program in programs.values()]
    assert calls == [(0, 25), (25, 0), (5, 0), (0, 1)]


@pytest.mark.slow
def test_a_backend_without_int4_folds_the_head_too() -> None:
    programs = run_check(short_dummy(dummy_layers=3, draft_quant="int8", backend="xnnpack"))
    assert set(map(int4_calls, programs.values())) == {(0, 0)}
