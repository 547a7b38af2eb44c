"""A model whose KV caches have another dtype than its weights and activations."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from eagle_aot.export import ExportSpec, resolve_checkpoints
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.loading.load import load_pair
from eagle_aot.export.methods import method_specs
from eagle_aot.export.pair import Pair
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.step import MIN_PREFILL, PromptChunk, Step, chain_tail
from support.gemma_oracle import random_tokens
from support.golden_cases import relative_error

POSITIONS, SEQUENCES, ROWS = 128, 2, 3
ROUNDED = {torch.bfloat16: 2e-2, torch.int8: 5e-2}
"""Largest relative error of logits whose keys and values are rounded to 8 bits, of a mantissa or in
steps of the largest element's 127th."""


@pytest.fixture(params=["random_pair", "qwen3_pair"])
def directories(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    directories: tuple[Path, Path] = request.getfixturevalue(request.param)
    return directories


def load(
    directories: tuple[Path, Path], cache_dtype: torch.dtype, *, by_token: bool = False
) -> Pair:
    """Load a pair in float32 with caches of `cache_dtype` for two sequences."""
    checkpoints = resolve_checkpoints(
        ExportSpec(target_model="auto", target_dir=directories[0], draft_dir=directories[1])
    )
    caches = CacheSpec(POSITIONS, cache_dtype, sequences=SEQUENCES, by_token=by_token)
    return load_pair(checkpoints, torch.float32, caches).pair


@torch.no_grad()
def forwards(pair: Pair) -> list[Tensor]:
    """Return logits and features of a prompt chunk and of a step of two sequences."""
    target, draft = pair.target, pair.draft
    target.set_eagle_tap_layers(draft.tap_layers)
    vocab = target.vocab_size
    outputs: list[Tensor] = []
    for sequence in range(SEQUENCES):
        chunk = PromptChunk(torch.arange(MIN_PREFILL), torch.tensor([sequence]))
        outputs += target.run(random_tokens(MIN_PREFILL, sequence, vocab), chunk)
    positions = torch.arange(MIN_PREFILL, MIN_PREFILL + ROWS).expand(SEQUENCES, -1)
    step = Step(positions, torch.arange(SEQUENCES), chain_tail(positions))
    tokens = random_tokens(SEQUENCES * ROWS, 2, vocab).view(SEQUENCES, ROWS)
    logits, taps = target.run(tokens, step)
    return [*outputs, logits, taps, draft.fuse(taps)]


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_weights_have_the_models_dtype_and_caches_their_own(
    directories: tuple[Path, Path], dtype: torch.dtype
) -> None:
    pair = load(directories, dtype)
    assert pair.target.dtype == torch.float32
    assert {parameter.dtype for parameter in pair.parameters()} == {torch.float32}
    assert any(isinstance(module, nn.Linear) for module in pair.modules())
    caches = [module for module in pair.modules() if isinstance(module, KVCache)]
    assert {buffer.dtype for cache in caches for buffer in (cache.k, cache.v)} == {dtype}


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_cached_forwards_return_the_models_dtype_and_differ_by_the_caches_rounding(
    directories: tuple[Path, Path], dtype: torch.dtype
) -> None:
    outputs = forwards(load(directories, dtype))
    expected = forwards(load(directories, torch.float32))
    assert {output.dtype for output in outputs} == {torch.float32}
    for output, reference in zip(outputs, expected, strict=True):
        assert relative_error(output, reference) < ROUNDED[dtype]
    assert not torch.equal(outputs[-3], expected[-3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_the_order_of_entries_in_memory_changes_no_bit(
    directories: tuple[Path, Path], dtype: torch.dtype
) -> None:
    pair = load(directories, dtype, by_token=True)
    caches = [module for module in pair.modules() if isinstance(module, KVCache)]
    for buffer in (buffer for cache in caches for buffer in cache.buffers()):
        assert buffer.stride()[1:] == (buffer.shape[0] * buffer.shape[2], 1)
    for output, expected in zip(forwards(pair), forwards(load(directories, dtype)), strict=True):
        assert torch.equal(output, expected)


def test_exported_methods_take_features_of_the_models_dtype(directories: tuple[Path, Path]) -> None:
    pair = load(directories, torch.bfloat16)
    methods = method_specs(pair, method_lengths(72, POSITIONS, 0, SEQUENCES))
    with_features = [method for method in methods.values() if "features" in method.inputs]
    assert with_features
    with torch.no_grad():
        for method in with_features:
            assert method.forms["features"][0] == "float32"
            outputs = method.module(*(example for example, _ in method.inputs.values()))
            assert all(output.dtype == torch.float32 for output in outputs)


@pytest.mark.parametrize(("tokens", "together"), [(2**18, True), (2**20, False)])
def test_heads_lie_apart_where_a_sequence_is_too_long_to_count(tokens: int, together: bool) -> None:
    spec = CacheSpec(tokens, torch.bfloat16, by_token=True, on_host=True)
    assert spec.cache(8, 256).by_token == together
