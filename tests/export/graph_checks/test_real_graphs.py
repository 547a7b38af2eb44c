"""The graphs of real geometries keep the contract, and hold what it is about."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensor

from eagle_aot.artifact import COPY_ROWS, COPY_STATES, DRAFT_PREFILL, METHODS, TARGET_METHODS
from eagle_aot.common.errors import SettingError
from eagle_aot.export import ExportSpec, run_check
from eagle_aot.export.graph_checks import mutated_buffers
from eagle_aot.export.resolution import choose_attention
from eagle_aot.export.spec import Backend
from eagle_aot.targets.llama import LLAMA_3_1_8B, MISTRAL_7B
from eagle_aot.triton_kernels.int4_gemm import api
from eagle_aot.triton_kernels.kv_int8 import SCALE_BYTES
from support.heads.files import HeadShape, write_speculators
from support.pairs import dummy, expert_calls, int4_calls, short_dummy, tiny_check


@pytest.mark.parametrize(
    ("backend", "int4_linears", "sequences"), [("cuda", 24, 1), ("cuda", 24, 2), ("xnnpack", 0, 1)]
)
def test_the_shipped_geometry_keeps_the_contract_without_being_materialised(
    backend: Backend, int4_linears: int, sequences: int
) -> None:
    """In each of six layers q, k and v as one, gate and up as one, and two; XNNPACK folds them."""
    before = api.MATVEC_MAX_M
    programs, progress = tiny_check(backend, choose_attention(None, backend), sequences)
    assert ("pack" in [stage.name for stage in progress.stages]) == (backend == "cuda")
    brought = (DRAFT_PREFILL,) if backend == "cuda" else ()
    copying = (COPY_ROWS,) if sequences > 1 else ()
    assert tuple(programs) == (*METHODS, *brought, *copying) and before == api.MATVEC_MAX_M
    target_caches = {f"target.layers.{i}.self_attn.kv_cache.{n}" for i in range(6) for n in "kv"}
    assert mutated_buffers(programs["prefill"]) == target_caches
    for name in ("draft_decode", *brought):
        assert mutated_buffers(programs[name]) == {"draft.kv_cache.k", "draft.kv_cache.v"}
    for name in copying:
        assert mutated_buffers(programs[name]) == target_caches | mutated_buffers(
            programs["draft_decode"]
        )
    for program in programs.values():
        assert all(isinstance(tensor, FakeTensor) for tensor in program.state_dict.values())
    calls = [int4_calls(program) for program in programs.values()]
    others = 1 + len(brought) + len(copying)
    assert calls == [(0, int4_linears), (int4_linears, 0), *[(0, 0)] * others]


@pytest.mark.parametrize(
    "name", ["qwen3-32b", "qwen2.5-7b", "llama-3.1-8b", "smollm2-135m", "phi-4-mini"]
)
def test_a_published_geometry_of_every_other_family_keeps_the_contract(name: str) -> None:
    """A layer, which all of the target's are like, without a head. The 31B is in test_quant.py."""
    programs = run_check(dummy(name, drafter="ngram", dummy_layers=1))
    calls = {name: int4_calls(program) for name, program in programs.items()}
    assert calls == {"prefill": (0, 4), "target_verify": (4, 0)}


@pytest.mark.parametrize(("name", "linears"), [("gemma4-26b-a4b", 4), ("qwen3-30b-a3b", 2)])
def test_layers_with_experts_keep_the_contract(name: str, linears: int) -> None:
    """One layer, for several sequences. The router is dense, and a step has no copy of a stack."""
    programs = run_check(dummy(name, drafter="ngram", dummy_layers=1, max_batch_size=2))
    steps, prompts = programs["target_verify"], programs["prefill"]
    assert int4_calls(steps) == (linears, 0) and expert_calls(steps) == (2, 0)
    assert int4_calls(prompts) == (0, linears) and expert_calls(prompts) == (0, 2)


def test_int8_keys_and_values_keep_the_contract() -> None:
    """One layer of each kind, of several sequences, with a head."""
    options = {"kv_cache_dtype": "int8", "max_batch_size": 2, "dummy_layers": 6}
    programs = run_check(short_dummy("gemma4-31b", **options))
    caches = [
        tensor for program in programs.values() for name, tensor in program.constants.items()
        if name.endswith(("kv_cache.k", "kv_cache.v"))
    ]  # fmt: skip
    assert {(cache.dtype, cache.shape[-1]) for cache in caches} == {
        (torch.int8, 256 + SCALE_BYTES), (torch.int8, 512 + SCALE_BYTES)
    }  # fmt: skip


def test_int8_keys_and_values_are_for_cuda() -> None:
    with pytest.raises(SettingError, match="--kv-cache-dtype int8: its kernels run on cuda"):
        run_check(short_dummy(kv_cache_dtype="int8", backend="xnnpack"))


def test_a_layer_with_recurrent_states_keeps_the_contract() -> None:
    """On a CPU, at its largest, for several sequences. It has no rows of keys to copy."""
    programs = run_check(dummy("qwen3.5-27b", drafter="ngram", dummy_layers=1, max_batch_size=2))
    cache = "target.layers.0.linear_attn.kv_cache"
    state = {f"{cache}.{name}" for name in ("state", "position", "inputs")}
    step = state | {f"{cache}.terms"}
    assert {name: mutated_buffers(program) for name, program in programs.items()} == {
        **dict.fromkeys(TARGET_METHODS, step),
        COPY_ROWS: set(),
        COPY_STATES: state,
    }


def test_mistral_7b_has_the_layers_of_llama_3_1_8b() -> None:
    llama = replace(LLAMA_3_1_8B, vocab_size=MISTRAL_7B.vocab_size, rope=MISTRAL_7B.rope)
    assert llama == MISTRAL_7B


@pytest.mark.parametrize("backend", ["cuda", "xnnpack"])
def test_the_methods_of_a_target_alone_return_logits_and_nothing_else(backend: Backend) -> None:
    programs = run_check(
        dummy("qwen3-0.6b", dummy_layers=1, drafter="ngram", backend=backend, max_seq_len=128)
    )
    assert tuple(programs) == TARGET_METHODS
    for program in programs.values():
        assert len(program.graph_signature.user_outputs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {},
    {"norm_before_residual": True, "norm_before_fc": True, "biases": True},
    {"fc_norm": True, "norm_output": True, "own_embedding": False},
], ids=str)  # fmt: skip
def test_heads_of_every_kind_keep_the_contract(
    random_pair: tuple[Path, Path], tmp_path: Path, options: dict[str, bool]
) -> None:
    """Over a target of dense weights."""
    shape = HeadShape(hidden=64, target_hidden=64, vocab=1024, draft_vocab=256, **options)
    head = write_speculators(tmp_path / "head", shape)
    programs = run_check(
        ExportSpec(
            target_model="gemma4-31b", target_dir=random_pair[0], draft_dir=head, max_seq_len=128
        )
    )
    assert tuple(programs) == METHODS and set(map(int4_calls, programs.values())) == {(0, 0)}
