"""Llama and Qwen3 decoders compared with random transformers models of many geometries."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.step import longest_chunk, ring_slots
from support.gemma_oracle import oracle_states, random_tokens, run_in_chunks
from support.golden_cases import relative_error
from support.pre_norm_oracle import FAMILIES, LLAMA3_ROPE, YARN_ROPE, random_pre_norm, save

TOLERANCE = 2e-5
SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    LLAMA3_ROPE,
    YARN_ROPE,
    YARN_ROPE | {"attention_factor": 1.5, "truncate": False, "beta_fast": 8.0, "beta_slow": 2.0},
    YARN_ROPE | {"mscale": 2.0, "mscale_all_dim": 0.5},
]
SLIDING = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a geometry of either family."""
    heads = draw(st.sampled_from([1, 2, 4]))
    return {
        "num_hidden_layers": draw(st.integers(1, 4)),
        "hidden_size": draw(st.sampled_from([16, 32, 40])),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])),
        "head_dim": draw(st.sampled_from([8, 16, 24])),
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-3])),
        "rope_parameters": draw(st.sampled_from(ROPES)),
        "tie_word_embeddings": draw(st.booleans()),
    }


def fresh(directory: Path | str, max_seq_len: int = 64) -> TapTarget:
    """Load a target that returns every boundary."""
    target = load_target(directory, max_seq_len)
    target.set_eagle_tap_layers(range(target.num_hidden_layers + 1))
    return target


@SETTINGS
@given(family=st.sampled_from(sorted(FAMILIES)), geometry=geometries(), data=st.data())
def test_every_geometry_matches_transformers_in_chunks_of_any_size(
    family: str, geometry: dict[str, Any], data: st.DataObject
) -> None:
    model, tokens = random_pre_norm(family, **geometry), random_tokens(40)
    sizes = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=6))
    expected_logits, expected = oracle_states(model, tokens)
    with tempfile.TemporaryDirectory() as name:
        logits, taps = run_in_chunks(fresh(save(model, Path(name))), tokens, sizes)
    assert relative_error(logits, expected_logits) < TOLERANCE
    assert len(taps) == len(expected)
    for boundary, states in enumerate(expected):
        assert relative_error(taps[boundary], states) < TOLERANCE, f"boundary {boundary}"


@pytest.mark.parametrize(
    "changes",
    [SLIDING, SLIDING | {"layer_types": ["sliding_attention", "full_attention"] * 2}],
    ids=["by depth", "listed"],
)
@pytest.mark.parametrize("sizes", [[1], [8], [longest_chunk(8), 1, 5]])
def test_sliding_layers_match_transformers_past_the_ring(
    tmp_path: Path, changes: dict[str, Any], sizes: list[int]
) -> None:
    model, tokens = random_pre_norm("qwen3", **changes), random_tokens(2 * ring_slots(8))
    expected_logits, expected = oracle_states(model, tokens)
    target = fresh(save(model, tmp_path), tokens.shape[1])
    assert target.sliding_window == 8
    logits, taps = run_in_chunks(target, tokens, sizes)
    assert relative_error(logits, expected_logits) < TOLERANCE
    assert relative_error(taps, expected) < TOLERANCE
    plain, _ = oracle_states(random_pre_norm("qwen3"), tokens)
    assert relative_error(plain, expected_logits) > 100 * TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_logits_are_close_to_float32(tmp_path: Path, family: str) -> None:
    model, tokens = random_pre_norm(family), random_tokens(24)
    expected, _ = oracle_states(model, tokens)
    target = load_target(save(model, tmp_path), 32, torch.bfloat16)
    logits, _ = run_in_chunks(target, tokens, [8])
    assert logits.dtype == torch.float32
    assert relative_error(logits, expected) < 0.03
