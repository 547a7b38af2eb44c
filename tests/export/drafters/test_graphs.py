"""Every kind of drafter is recognised, and its methods keep the contract of exported graphs."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from torch import nn
from torch.export import ExportedProgram

from eagle_aot.artifact import DRAFT_DECODE
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export import ExportSpec, run_check
from eagle_aot.export.drafters.protocol import DrafterKind, HeadKind
from eagle_aot.export.drafters.registry import HEADS, KINDS, kind_of, kind_of_checkpoint
from eagle_aot.export.graph_checks import mutated_buffers
from eagle_aot.export.graph_checks.nodes import calls, operator_name, used_weights
from eagle_aot.targets.checkpoint import Checkpoint
from support.gemma_oracle import random_gemma, save_text_layout
from support.heads.files import (
    HeadShape,
    head_tensors,
    safeailab_config,
    write_head,
    write_speculators,
)
from support.pairs import head_of, load, short_dummy, target_of

SPLITK, SMALL_M = "eagle_aot::sdpa_splitk", "eagle_aot::int4_small_m"


def test_eagle3_head_of_several_layers_with_dynamic_rope_writes_its_caches(tmp_path: Path) -> None:
    shape = HeadShape(num_layers=2, qk_norm=True, biases=True)
    rope = {"rope_type": "dynamic", "factor": 3.0}
    target = save_text_layout(random_gemma(), tmp_path / "target")
    config = safeailab_config(shape, rope_parameters=rope, max_position_embeddings=32)
    head = write_head(tmp_path / "head", head_tensors(shape), config)
    caches = {"draft.kv_cache.k", "draft.kv_cache.v"}
    caches |= {f"draft.layers.{i}.kv_cache.{n}" for i in range(1, shape.num_layers) for n in "kv"}
    spec = ExportSpec(
        target_model="gemma4-31b", target_dir=target, draft_dir=head, tap_layers=(1, 2, 3),
        backend="xnnpack", max_seq_len=128, max_prefill=72,
    )  # fmt: skip
    assert mutated_buffers(run_check(spec)[DRAFT_DECODE]) == caches


def traced(drafter: str, layers: int = 3) -> dict[str, ExportedProgram]:
    """Trace a dummy for CUDA, with a head in INT4 and caches for two sequences."""
    options: Any = {"dummy_layers": layers, "drafter": drafter, "draft_quant": "int4"}
    return run_check(short_dummy(max_batch_size=2, **options))


def operators(program: ExportedProgram) -> set[str | None]:
    return {operator_name(node) for node in calls(program)}


@pytest.mark.slow
def test_dflash_head_stores_features_and_drafts_a_block() -> None:
    programs = traced("dflash")
    assert list(programs) == [
        "prefill", "target_verify", "dflash_context", "dflash_block", "copy_rows",
    ]  # fmt: skip
    block, context = programs["dflash_block"], programs["dflash_context"]
    assert mutated_buffers(block) == mutated_buffers(context)
    assert all(name.startswith("draft.layers.") for name in mutated_buffers(block))
    assert {SPLITK, SMALL_M} <= operators(block)
    assert SPLITK not in operators(context)


@pytest.mark.slow
def test_dflash2_head_scores_candidates_without_caches() -> None:
    programs = traced("dflash2")
    assert list(programs) == [
        *("prefill", "target_verify", "dflash_context", "dflash2_block", "dflash2_scores"),
        "copy_rows",
    ]
    block, scores = programs["dflash2_block"], programs["dflash2_scores"]
    assert mutated_buffers(block) == mutated_buffers(programs["dflash_context"])
    assert {SPLITK, SMALL_M} <= operators(block)
    tables = {f"draft.candidate_selector.{n}_codebook.weight" for n in ("predecessor", "successor")}
    assert used_weights(scores).keys() == tables and not tables & used_weights(block).keys()


@pytest.mark.slow
def test_dspark_head_corrects_drafts_without_caches() -> None:
    programs = traced("dspark")
    assert list(programs) == [
        *("prefill", "target_verify", "dflash_context", "dspark_block", "dspark_bias"),
        "copy_rows",
    ]
    block, bias = programs["dspark_block"], programs["dspark_bias"]
    assert mutated_buffers(block) == mutated_buffers(programs["dflash_context"])
    assert {SPLITK, SMALL_M} <= operators(block) and SMALL_M in operators(bias)
    assert not mutated_buffers(bias)
    own = {name for name in used_weights(bias) if name.startswith("draft.")}
    parts = (
        "draft.markov_head.markov_w1.",
        "draft.markov_head.markov_w2.",
        "draft.confidence_head.",
    )
    assert own and all(name.startswith(parts) for name in own)
    assert not own & used_weights(block).keys()


def test_assistant_reads_two_caches_of_its_target() -> None:
    """It reads those of the last sliding and of the last full layer."""
    programs = traced("gemma4-assistant", layers=6)
    assert list(programs) == ["prefill", "target_verify", "mtp_decode", "copy_rows"]
    drafting = programs["mtp_decode"]
    read = {f"target.layers.{layer}.self_attn.kv_cache.{part}" for layer in (4, 5) for part in "kv"}
    caches = {name for name in used_weights(drafting) if "kv_cache" in name}
    assert caches == mutated_buffers(drafting) == read
    assert {SPLITK, SMALL_M} <= operators(drafting)


def test_mtp_layer_writes_its_cache_and_uses_its_targets_tables() -> None:
    """That of a dense target, for which CUDA has code."""
    spec = short_dummy("qwen3-1.7b", dummy_layers=1, drafter="mtp", draft_quant="int4")
    programs = run_check(replace(spec, max_batch_size=2))
    assert set(programs) == {
        "prefill", "target_verify", "draft_decode", "draft_prefill", "copy_rows"
    }  # fmt: skip
    drafting, storing = programs["draft_decode"], programs["draft_prefill"]
    cache = {f"draft.mtp.layers.0.self_attn.kv_cache.{part}" for part in "kv"}
    assert mutated_buffers(drafting) == mutated_buffers(storing) == cache
    used = set(used_weights(drafting))
    assert "target.embed_tokens.weight" in used
    assert not [name for name in used if name.startswith("draft.") and "embed_tokens" in name]
    assert not [name for name in used_weights(storing) if "mlp" in name or "o_proj" in name]
    assert {SPLITK, SMALL_M} <= operators(drafting)


@pytest.mark.slow
def test_peagle_head_writes_its_caches_and_reads_its_mask() -> None:
    programs = traced("p-eagle")
    assert set(programs) == {
        "prefill", "target_verify", "peagle_decode", "draft_prefill", "copy_rows"
    }  # fmt: skip
    drafting = programs["peagle_decode"]
    caches = {"draft.kv_cache.k", "draft.kv_cache.v"}
    caches |= {f"draft.layers.{layer}.kv_cache.{part}" for layer in (1, 2, 3) for part in "kv"}
    assert mutated_buffers(drafting) == caches
    assert "draft.mask_feature" in used_weights(drafting)
    assert "draft.mask_feature" not in used_weights(programs["draft_prefill"])
    assert {SPLITK, SMALL_M} <= operators(drafting)


def test_checkpoint_and_loaded_head_have_the_same_kind(random_pair: tuple[Path, Path]) -> None:
    kind = kind_of_checkpoint(Checkpoint(random_pair[1]))
    spec = ExportSpec(target_model="auto", target_dir=random_pair[0], draft_dir=random_pair[1])
    pair = load(spec).pair
    assert kind_of(pair.draft) is kind is KINDS["eagle3"] is HEADS["eagle3"]
    assert pair.draft.kind == "eagle3"
    assert target_of(pair).tap_layers == pair.draft.tap_layers == head_of(pair).config.tap_layers
    assert len(pair.draft.tap_layers) == 3


def test_a_target_alone_is_tapped_nowhere(random_pair: tuple[Path, Path]) -> None:
    loaded = load(ExportSpec(target_model="auto", target_dir=random_pair[0]))
    pair = loaded.pair
    assert kind_of(pair.draft) is KINDS["ngram"] and "ngram" not in HEADS
    assert target_of(pair).tap_layers == pair.draft.tap_layers == ()
    assert loaded.reading == {}
    assert isinstance(pair.draft, nn.Module)
    assert not list(pair.draft.parameters()) and not pair.draft.state_dict()


def functions(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_all_functions_of_its_protocol(name: str) -> None:
    assert functions(DrafterKind) == {"without_checkpoint", "methods"}
    assert functions(HeadKind) == {"claims", "load", "describe", "readings"}
    required = functions(DrafterKind) | (functions(HeadKind) if name in HEADS else set())
    assert all(callable(getattr(KINDS[name], function)) for function in required)


def test_unknown_kind_is_refused_by_name(tmp_path: Path) -> None:
    head = write_speculators(tmp_path, HeadShape())
    config = head / "config.json"
    config.write_text(config.read_text().replace('"eagle3"', '"medusa"'))
    checkpoint = Checkpoint(head)
    with pytest.raises(UnsupportedError, match="a set of Medusa heads"):
        kind_of_checkpoint(checkpoint).describe(checkpoint, None, None)
