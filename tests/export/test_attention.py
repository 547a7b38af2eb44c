"""Which attention an export's methods have, and that it changes no number by more than rounding."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

from eagle_aot.errors import ExportError, SettingError
from eagle_aot.export import ExportOptions, Source, run_check
from eagle_aot.export.attention import SPLITK, STOCK, attending_by, choose_attention
from eagle_aot.export.graph_checks.attention_route import check_attention_route
from eagle_aot.targets import load_target
from eagle_aot.targets.decoder.kv_cache import KVCache
from gemma_oracle import random_tokens, run_in_chunks
from golden_cases import relative_error

TINY = Source.find("gemma4-tiny", None, None, "dummy")
ATEN = torch.ops.aten


def graphs(
    source: Source, attention: str | None, backend: str = "cuda"
) -> dict[str, ExportedProgram]:
    options = ExportOptions(backend=backend, attention=attention, max_seq_len=64, max_prefill=24)
    return run_check(source, options)


def count(program: ExportedProgram, target: object) -> int:
    return sum(node.target is target for node in program.graph.nodes)


@pytest.mark.parametrize(
    ("backend", "attention", "verify"),
    [("cuda", None, 6), ("cuda", SPLITK, 6), ("cuda", STOCK, 0), ("xnnpack", None, 0)],
)
def test_only_verification_attends_by_the_operator_and_it_makes_no_mask(
    backend: str, attention: str | None, verify: int
) -> None:
    programs = graphs(TINY, attention, backend)
    splitk = torch.ops.eagle_aot.sdpa_splitk.default
    assert [count(p, splitk) for p in programs.values()] == [0, verify, 0]
    masks = [count(p, ATEN.arange.default) for p in programs.values()]
    assert masks == [2, 0 if verify else 2, 1]


@pytest.mark.parametrize("context", [0, 3, 37, 60])
def test_a_target_computes_the_same_with_either(
    random_pair: tuple[Path, Path], context: int
) -> None:
    """In bfloat16, each as far from the target in float32."""
    tokens = random_tokens(context + 8)
    exact, _ = run_in_chunks(load_target(random_pair[0], 96), tokens, [8])
    target = load_target(random_pair[0], 96, torch.bfloat16)
    assert isinstance(target, nn.Module)
    if context:
        run_in_chunks(target, tokens[:, :context], [12])
    errors = {}
    for attention in (STOCK, SPLITK):
        with attending_by(attention, target):
            logits, _ = run_in_chunks(target, tokens[:, context:], [8], start=context)
        errors[attention] = relative_error(logits, exact[context:])
    assert errors[SPLITK] != errors[STOCK]  # it was another path
    assert errors[SPLITK] < 1.1 * errors[STOCK] < 0.1


def test_what_caches_do_is_restored(random_pair: tuple[Path, Path]) -> None:
    target = load_target(random_pair[0], 96)
    assert isinstance(target, nn.Module)
    caches = [module for module in target.modules() if isinstance(module, KVCache)]
    with pytest.raises(KeyError), attending_by(SPLITK, target):
        assert len(caches) == 3 and all(cache.splits_keys for cache in caches)
        with attending_by(STOCK, target):
            assert not any(cache.splits_keys for cache in caches)
        assert all(cache.splits_keys for cache in caches)
        raise KeyError("a failure while tracing")
    assert not any(cache.splits_keys for cache in caches)


def test_the_check_names_a_cache_that_is_read_otherwise() -> None:
    verify = graphs(TINY, STOCK)["target_verify"]
    with pytest.raises(
        ExportError, match=r"target_verify: cache target\.layers\.\d.* is read by aten::"
    ):
        check_attention_route("target_verify", verify)


@pytest.mark.parametrize(
    ("asked", "backend", "chosen"),
    [
        (None, "cuda", SPLITK),
        (None, "xnnpack", STOCK),
        (STOCK, "cuda", STOCK),
        (STOCK, "xnnpack", STOCK),
        (SPLITK, "cuda", SPLITK),
    ],
)
def test_which_attention_is_chosen(asked: str | None, backend: str, chosen: str) -> None:
    assert choose_attention(asked, backend) == chosen


def test_an_unknown_attention_is_refused() -> None:
    with pytest.raises(SettingError, match="--attention paged: must be splitk or stock"):
        choose_attention("paged", "cuda")


def test_kernels_for_cuda_are_refused_elsewhere() -> None:
    with pytest.raises(SettingError, match="--attention splitk: its kernels run on CUDA"):
        graphs(TINY, SPLITK, "xnnpack")
