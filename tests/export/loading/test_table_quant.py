"""`--table-quant`: the logits of a target with a rounded output table, and heads that share it, or
with `--draft-quant` have a smaller copy."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export import ExportSpec, Pair, pipeline, resolve, run_check
from eagle_aot.export.loading.load import linear_formats
from eagle_aot.export.loading.quantise import quantise_table
from eagle_aot.export.plan import plan_export
from eagle_aot.export.prepare.int4 import dequantize_int4, pack_int4
from eagle_aot.export.spec import Quant
from eagle_aot.targets.int4 import Int4Linear, PackedInt4Linear
from support.gemma_oracle import (
    VOCAB,
    oracle_states,
    random_gemma,
    random_tokens,
    run_in_chunks,
    save_text_layout,
)
from support.golden_cases import relative_error
from support.heads.files import HeadShape, head_tensors, safeailab_config, write_head
from support.pairs import dummy, head_of, int4_calls, load, short_dummy, target_of
from support.pre_norm_oracle import random_pre_norm, save

HIDDEN, TAPS = 64, [0, 1, 4]
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma4": {"intermediate_size": 96, "head_dim": 16, "global_head_dim": 32},
    "llama": {},
    "qwen3": {"tie_word_embeddings": False},
}
KINDS: list[Quant] = ["int8", "int4"]

Files = tuple[Any, Path, Path]
"""A model of transformers, its checkpoint, and a head."""


def model_of(family: str, hidden: int = HIDDEN) -> Any:
    sizes = FAMILIES[family] | {"hidden_size": hidden}
    return random_gemma(**sizes) if family == "gemma4" else random_pre_norm(family, **sizes)


def head_without_tables(directory: Path) -> Path:
    """A head of the whole vocabulary whose two tables are the target's."""
    shape = HeadShape(vocab=VOCAB, hidden=HIDDEN, target_hidden=HIDDEN, draft_vocab=VOCAB)
    tensors = head_tensors(shape)
    for name in ("lm_head.weight", "embed_tokens.weight", "d2t"):
        del tensors[name]
    eagle_config = {"eagle_aux_hidden_state_layer_ids": TAPS}
    return write_head(directory, tensors, safeailab_config(shape, eagle_config=eagle_config))


@pytest.fixture(scope="module", params=FAMILIES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Of each family: a model, its checkpoint, and a head whose tables are the model's."""
    directory, model = tmp_path_factory.mktemp(request.param), model_of(request.param)
    write = save_text_layout if request.param == "gemma4" else save
    return model, write(model, directory / "target"), head_without_tables(directory / "head")


def load_files(
    files: Files, kind: Quant, dtype: torch.dtype = torch.float32, draft_quant: Quant = "none"
) -> Pair:
    _, target_dir, draft_dir = files
    spec = ExportSpec(
        target_model="auto", target_dir=target_dir, draft_dir=draft_dir, table_quant=kind,
        draft_quant=draft_quant,
    )  # fmt: skip
    return load(spec, dtype).pair


def rounded(weight: Tensor, kind: Quant, dtype: torch.dtype = torch.float32) -> Tensor:
    """[N, K] on the grid of its groups of 32 columns with steps of `dtype`, in float64."""
    groups = weight.double().unflatten(1, (-1, 32))
    if kind == "int8":
        step = (groups.abs().amax(-1, keepdim=True) / 119).to(dtype).double()
        return ((groups / step).round() * step).flatten(1)
    low = groups.amin(-1, keepdim=True).clamp(max=0)
    step = ((groups.amax(-1, keepdim=True).clamp(min=0) - low) / 15).to(dtype).double()
    zero = (-low / step).round()
    return (((groups / step + zero).round().clamp(0, 15) - zero) * step).flatten(1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_transformers_with_a_rounded_table(
    files: Files, kind: Quant
) -> None:
    """With soft caps, too. Embeddings are not rounded, even if tables are tied."""
    model, tokens = copy.deepcopy(files[0]), random_tokens(30)
    table: Any = nn.Linear(HIDDEN, VOCAB, bias=False)
    table.weight = nn.Parameter(rounded(files[0].lm_head.weight.detach(), kind).float())
    model.lm_head = table
    expected, _ = oracle_states(model, tokens)
    pair = load_files(files, kind)
    found, _ = run_in_chunks(pair.target, tokens, [20, 1, 9])
    assert relative_error(found, expected) < 1e-5
    exact, _ = oracle_states(files[0], tokens)
    assert relative_error(found, exact) > 1e-3
    assert torch.equal(pair.target.embed_weight, files[0].model.embed_tokens.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_whose_table_it_is_multiplies_with_the_same_one(files: Files, kind: Quant) -> None:
    """And there stays one where linears are packed or folded, whatever becomes of the head's."""
    for dtype, prepare in (
        (torch.bfloat16, lambda pair: pack_int4(pair, 132)),
        (torch.float32, dequantize_int4),
    ):
        draft_quant: Quant = kind if dtype == torch.bfloat16 else "int4"
        pair = load_files(files, kind, dtype, draft_quant=draft_quant)
        tables = [target_of(pair).lm_head, head_of(pair).lm_head]
        assert tables[0] is tables[1] and isinstance(tables[0], Int4Linear)
        assert tables[0].digits == {"int8": 2, "int4": 1}[kind]
        formats = linear_formats(pair)
        assert formats["target.lm_head"] == formats["draft.lm_head"] == {f"{kind}-g32": 1}
        assert formats["draft.fc"] == {f"{draft_quant}-g32": 1}
        prepared = prepare(pair)
        tables = [target_of(prepared).lm_head, head_of(prepared).lm_head]
        assert tables[0] is tables[1] and isinstance(tables[0], PackedInt4Linear | nn.Linear)


@pytest.mark.parametrize(
    ("kind", "draft_quant", "own"),
    [
        *(("none", "int4", True), ("none", "int8", True), ("int8", "int4", True)),
        *(("int4", "int8", False), ("int8", "none", False), ("none", "none", False)),
    ],
)
def test_for_cuda_a_head_has_a_copy_of_the_table_where_that_is_smaller(
    files: Files, kind: Quant, draft_quant: Quant, own: bool
) -> None:
    """XNNPACK would compute with both in float32."""
    pair = load_files(files, kind, torch.bfloat16, draft_quant)
    head, dense = head_of(pair), load_files(files, "none", torch.bfloat16).target.lm_head_weight
    formats = linear_formats(pair)
    expected = draft_quant if own else kind
    assert formats["draft.lm_head"] == {"dense" if expected == "none" else f"{expected}-g32": 1}
    assert head.embed_tokens.weight.data_ptr() == pair.target.embed_weight.data_ptr()
    assert kind != "none" or torch.equal(pair.target.lm_head_weight, dense)
    if own:
        states = torch.randn(1, 9, HIDDEN, dtype=torch.bfloat16)
        table = rounded(dense, draft_quant, torch.bfloat16)
        unpacked = head.lm_head(states)
        assert relative_error(unpacked.double(), states.double() @ table.T) < 4e-3
        assert torch.equal(head_of(pack_int4(pair, 132)).lm_head(states), unpacked)
    of_xnnpack = linear_formats(load_files(files, kind, draft_quant=draft_quant))
    assert of_xnnpack["draft.lm_head"] == {"dense" if kind == "none" else f"{kind}-g32": 1}


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["dflash", "dflash2", "mtp"])
def test_a_copy_for_the_drafter_is_planned_as_it_is_loaded(tmp_path: Path, drafter: Any) -> None:
    """The same bytes as those of a table of the target, and of the same tensors."""
    path = save(model_of("qwen3"), tmp_path / "target")
    spec = dummy("auto", target_dir=path, drafter=drafter, backend="cuda", check_only=True)
    sizes = []
    for options in ({}, {"draft_quant": "int4"}, {"draft_quant": "int4", "table_quant": "int4"}):
        resolved = resolve(replace(spec, **options))
        pair, plan = pipeline.load(resolved).pair, plan_export(resolved.spec)
        assert plan is not None and plan.weight_bytes == pair.weight_bytes
        sizes.append(plan.weight_bytes)
    dense, copied, shared = sizes
    assert shared == copied - 2 * VOCAB * HIDDEN < copied < dense + VOCAB * HIDDEN * 5 // 8


def test_a_head_with_its_own_table_keeps_that(tmp_path: Path) -> None:
    shape = HeadShape(vocab=VOCAB, target_hidden=HIDDEN)
    eagle_config = {"eagle_aux_hidden_state_layer_ids": TAPS}
    config = safeailab_config(shape, eagle_config=eagle_config)
    head = write_head(tmp_path / "head", head_tensors(shape), config)
    pair = load_files((None, save(model_of("llama"), tmp_path / "target"), head), "int8")
    assert isinstance(head_of(pair).lm_head, nn.Linear)
    assert isinstance(target_of(pair).lm_head, Int4Linear)


def test_the_graphs_of_a_head_that_shares_the_table_keep_the_contract(tmp_path: Path) -> None:
    """A prompt's last row and every row of a step read it with the kernel for few rows."""
    target_dir = save(model_of("llama"), tmp_path / "target")
    spec = ExportSpec(
        target_model="auto", target_dir=target_dir,
        draft_dir=head_without_tables(tmp_path / "head"), table_quant="int8", max_seq_len=128,
        max_prefill=72,
    )  # fmt: skip
    assert [int4_calls(program) for program in run_check(spec).values()] == 3 * [(1, 0)]


def test_the_graphs_of_the_31b_keep_the_contract() -> None:
    programs = run_check(short_dummy("gemma4-31b", dummy_layers=3, table_quant="int4"))
    assert list(map(int4_calls, programs.values())) == [(1, 12), (13, 0), (0, 0), (0, 0)]


def test_unsupported_tables_and_combinations_are_refused(tmp_path: Path) -> None:
    target = save(model_of("llama", hidden=40), tmp_path / "target")
    tiny = load(ExportSpec(target_model="gemma4-tiny")).pair
    quantise_table(tiny.target, nn.Module(), "int8")
    with pytest.raises(UnsupportedError, match="--table-quant int4: the checkpoint's output table"):
        quantise_table(tiny.target, nn.Module(), "int4")
    with pytest.raises(UnsupportedError, match=r"output table has 40 columns, no multiple of 32"):
        load(ExportSpec(target_model="auto", target_dir=target, table_quant="int8"))
