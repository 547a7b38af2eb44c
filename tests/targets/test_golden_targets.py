"""Decoders of every family compared with recorded results of transformers."""

import pytest
import torch

from eagle_aot.targets import load_target
from support.gemma_oracle import run_in_chunks
from support.golden_cases import golden_case, relative_error

CASES = [  # with the sliding window, or a number of rows for targets without one
    ("target/gemma4_ct_w4a16", 16),
    ("target/gemma4_bf16_text", 8),
    ("target/qwen3_bf16", 11),
    ("target/llama3_bf16", 11),
    ("moe/qwen3_moe", 11),
    ("moe/gemma4_moe", 8),
    ("target/qwen3_5", 16),
]
TOLERANCE = 1e-4


@pytest.mark.parametrize("chunk", ["window", "token", "mixed", "whole"])
@pytest.mark.parametrize(("name", "window"), CASES)
def test_logits_and_every_boundary_match_transformers(name: str, window: int, chunk: str) -> None:
    directory, case = golden_case(name)
    expected = case["expected.boundary_hidden_states"]
    target = load_target(directory, max_seq_len=96)
    target.set_eagle_tap_layers(range(target.num_hidden_layers + 1))
    tokens = case["input.tokens"][None]
    sizes = {
        "window": [window],
        "token": [1],
        "mixed": [2 * window, 1, window, 3],
        "whole": [tokens.shape[1]],
    }[chunk]
    logits, taps = run_in_chunks(target, tokens, sizes)
    assert relative_error(logits, case["expected.logits"]) < TOLERANCE
    assert torch.equal(logits.argmax(-1), case["expected.logits"].argmax(-1))
    assert len(taps) == len(expected)
    for boundary, states in enumerate(expected):
        assert relative_error(taps[boundary], states) < TOLERANCE, f"boundary {boundary}"


@pytest.mark.parametrize(("name", "window"), CASES)
def test_a_tap_shifted_by_one_exceeds_the_tolerance(name: str, window: int) -> None:
    directory, case = golden_case(name)
    expected = case["expected.boundary_hidden_states"]
    target = load_target(directory, max_seq_len=96)
    target.set_eagle_tap_layers(range(target.num_hidden_layers + 1))
    _, taps = run_in_chunks(target, case["input.tokens"][None], [window])
    for shift in (1, -1):
        pairs = range(max(0, -shift), len(expected) - max(0, shift))
        errors = [relative_error(taps[b + shift], expected[b]) for b in pairs]
        assert min(errors) > 0.2, (shift, errors)
