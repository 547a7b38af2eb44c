"""Cached forwards of a target give the same numbers in chunks of any size."""

from pathlib import Path

import pytest
import torch

from eagle_aot.common.errors import SettingError
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.step import MAX_ROWS, MIN_PREFILL, SCRATCH_SLOTS, longest_chunk, ring_slots
from support.gemma_oracle import (
    FULL,
    SLIDING,
    oracle_states,
    random_gemma,
    random_tokens,
    run_in_chunks,
    save_text_layout,
)
from support.golden_cases import relative_error

WINDOW = 8
CHUNK, RING = longest_chunk(WINDOW), ring_slots(WINDOW)
LONG = 2 * RING + 5
TIGHT = 5e-6  # float32 sums in another order (BLAS picks it by row count), four layers deep


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layer_types = [SLIDING, FULL, SLIDING, FULL]
    model = random_gemma(layer_types=layer_types, sliding_window=WINDOW)
    return save_text_layout(model, tmp_path_factory.mktemp("gemma"))


@pytest.fixture
def target(checkpoint: Path) -> TapTarget:
    return fresh(checkpoint)


def fresh(checkpoint: Path, max_seq_len: int = LONG) -> TapTarget:
    target = load_target(checkpoint, max_seq_len)
    target.set_eagle_tap_layers(range(target.num_hidden_layers + 1))
    return target


@pytest.mark.parametrize(
    "sizes", [[1], [WINDOW], [5, 1, 8, 3], [CHUNK], [RING, 1], [MAX_ROWS, MIN_PREFILL, 2]]
)
def test_chunks_of_any_size_match_one_uncached_pass(target: TapTarget, sizes: list[int]) -> None:
    tokens = random_tokens(LONG)
    expected_logits, expected = oracle_states(random_gemma(sliding_window=WINDOW), tokens)
    logits, taps = run_in_chunks(target, tokens, sizes)
    assert relative_error(logits, expected_logits) < 2e-5
    assert relative_error(taps, expected) < 2e-5


@pytest.mark.parametrize("count", [8, MAX_ROWS])
@pytest.mark.parametrize("prompt", [2, 30, RING - 3])
def test_overwritten_rejected_tokens_have_no_effect(
    checkpoint: Path, target: TapTarget, prompt: int, count: int
) -> None:
    tokens, rejected = random_tokens(prompt + 19), random_tokens(count, seed=1)
    run_in_chunks(target, tokens[:, :prompt], [WINDOW])
    run_in_chunks(target, rejected, [count], start=prompt)
    actual = run_in_chunks(target, tokens[:, prompt:], [2, 1, 7], start=prompt)
    clean = fresh(checkpoint)
    run_in_chunks(clean, tokens[:, :prompt], [WINDOW])
    expected = run_in_chunks(clean, tokens[:, prompt:], [2, 1, 7], start=prompt)
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])


@pytest.mark.parametrize("reset", [True, False])
def test_a_longer_previous_sequence_has_no_effect(
    checkpoint: Path, target: TapTarget, reset: bool
) -> None:
    run_in_chunks(target, random_tokens(LONG, seed=1), [WINDOW])
    if reset:
        target.reset_cache()
    tokens = random_tokens(40)
    actual = run_in_chunks(target, tokens, [5, 1, 8])
    expected = run_in_chunks(fresh(checkpoint), tokens, [5, 1, 8])
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])


def test_a_row_alone_equals_the_row_among_others(checkpoint: Path, target: TapTarget) -> None:
    prompt, window = random_tokens(37), random_tokens(8, seed=2)
    run_in_chunks(target, prompt, [WINDOW])
    together, taps_together = run_in_chunks(target, window, [8], start=37)
    alone, taps_alone = run_in_chunks(target, window, [1], start=37)
    assert torch.equal(taps_alone[0], taps_together[0])
    assert relative_error(taps_alone[1], taps_together[1]) < 1e-6
    assert relative_error(taps_alone, taps_together) < TIGHT
    assert relative_error(alone, together) < TIGHT


def test_positions_beyond_the_cache_are_refused(checkpoint: Path) -> None:
    target = fresh(checkpoint, max_seq_len=20)
    tokens = random_tokens(20 + SCRATCH_SLOTS)
    run_in_chunks(target, tokens, [4])  # drafts may exceed the context
    with pytest.raises(SettingError, match="beyond the cache of 108"):
        target.forward_logits_taps(tokens[:, :1], torch.tensor([108]))
