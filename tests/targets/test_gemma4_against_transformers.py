"""The Gemma 4 decoder compared with random transformers models of many geometries."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from eagle_aot.common.errors import SettingError
from eagle_aot.targets import TARGETS, load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.gemma4 import load_gemma4
from eagle_aot.targets.step import longest_chunk, ring_slots
from support.gemma_oracle import (
    FULL,
    SLIDING,
    VOCAB,
    oracle_states,
    random_gemma,
    random_tokens,
    run_in_chunks,
    save_multimodal_layout,
    save_text_layout,
)
from support.golden_cases import relative_error

TOLERANCE = 2e-5
SETTINGS = settings(
    max_examples=14,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a Gemma 4 geometry. transformers forces the last layer to full attention."""
    pattern = draw(st.lists(st.sampled_from([SLIDING, FULL]), min_size=1, max_size=4))
    heads = draw(st.sampled_from([1, 2, 4]))
    divisors = [n for n in (1, 2, 4) if heads % n == 0]
    return {
        "layer_types": [*pattern, FULL],
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from(divisors)),
        "num_global_key_value_heads": draw(st.sampled_from(divisors)),
        "head_dim": draw(st.sampled_from([8, 16])),
        "global_head_dim": draw(st.sampled_from([8, 24, 32])),
        "attention_k_eq_v": draw(st.booleans()),
        "sliding_window": draw(st.sampled_from([1, 4, 8, 11, 64, 130])),
        "final_logit_softcapping": draw(st.sampled_from([None, 30.0])),
        "tie_word_embeddings": draw(st.booleans()),
    }


@SETTINGS
@given(
    geometry=geometries(),
    multimodal=st.booleans(),
    chunk=st.sampled_from([0, 100]),
    data=st.data(),
)
def test_every_geometry_matches_transformers_past_the_ring(
    geometry: dict[str, Any], multimodal: bool, chunk: int, data: st.DataObject
) -> None:
    """Also where a ring holds a window and shorter chunks than a window."""
    model = random_gemma(**geometry)
    window = geometry["sliding_window"]
    tokens, longest = random_tokens(2 * ring_slots(window, chunk) + 3), longest_chunk(window, chunk)
    sizes = data.draw(st.lists(st.integers(1, longest), min_size=1, max_size=6))
    expected_logits, expected = oracle_states(model, tokens)
    with tempfile.TemporaryDirectory() as name:
        if multimodal:
            save_multimodal_layout(model, Path(name), **geometry)
        else:
            save_text_layout(model, Path(name))
        caches = CacheSpec(tokens.shape[1], torch.float32, chunk=chunk)
        target = load_gemma4(Checkpoint(name), torch.float32, caches)
    target.set_eagle_tap_layers(range(len(expected)))
    logits, taps = run_in_chunks(target, tokens, sizes)
    assert relative_error(logits, expected_logits) < TOLERANCE
    assert relative_error(taps, expected) < TOLERANCE


def test_a_ring_of_short_chunks_holds_every_key_of_a_window(tmp_path: Path) -> None:
    """Of chunks that begin anywhere; a longer one is refused, for which a ring lacks slots."""
    model, tokens = random_gemma(sliding_window=130), random_tokens(700)
    expected, _ = oracle_states(model, tokens)
    caches = CacheSpec(700, torch.float32, chunk=100)
    target = load_gemma4(Checkpoint(save_text_layout(model, tmp_path)), torch.float32, caches)
    rings = [m for m in target.modules() if getattr(m, "ring", 0)]
    assert rings and all(cache.ring == 230 for cache in rings)
    for sizes in ([100], [100, 37, 1]):
        logits, _ = run_in_chunks(target, tokens, sizes)
        assert relative_error(logits, expected) < TOLERANCE
    with pytest.raises(SettingError, match="at most 100 fit"):
        run_in_chunks(target, tokens, [101])


def test_rope_of_full_layers_uses_the_configured_fraction_and_base(tmp_path: Path) -> None:
    rope = {
        SLIDING: {"rope_type": "default", "rope_theta": 500.0},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 2000.0},
    }
    model = random_gemma(rope_parameters=rope)
    tokens = random_tokens(40)
    expected, _ = oracle_states(model, tokens)
    target = load_target(save_text_layout(model, tmp_path), max_seq_len=40)
    assert relative_error(run_in_chunks(target, tokens, [8])[0], expected) < TOLERANCE
    plain, _ = oracle_states(random_gemma(), tokens)
    assert relative_error(plain, expected) > 100 * TOLERANCE


def test_the_bfloat16_embedding_scale_is_rounded_as_in_transformers(tmp_path: Path) -> None:
    model = random_gemma(hidden_size=40).bfloat16()  # sqrt(40) is not exact in bfloat16
    tokens = random_tokens(8)
    target = load_target(save_text_layout(model, tmp_path), 32, torch.bfloat16)
    target.set_eagle_tap_layers([0, 1])
    logits, (embedded, first) = run_in_chunks(target, tokens, [8])
    _, expected = oracle_states(model, tokens)
    assert logits.dtype == torch.float32
    assert torch.equal(embedded, expected[0])
    assert relative_error(first, expected[1]) < 0.02


def test_the_shipped_target_matches_auto_model() -> None:
    spec = TARGETS["gemma4-tiny"]
    model = AutoModelForCausalLM.from_pretrained(
        spec.target_dir, dtype=torch.float32, attn_implementation="eager"
    )
    target = load_target("gemma4-tiny", max_seq_len=512)
    assert target.sliding_window == model.config.sliding_window
    target.set_eagle_tap_layers(range(target.num_hidden_layers + 1))
    tokens = random_tokens(3 * target.sliding_window, vocab=target.vocab_size)
    expected_logits, expected = oracle_states(model.eval(), tokens)
    logits, taps = run_in_chunks(target, tokens, [target.sliding_window])
    assert target.vocab_size > VOCAB
    assert relative_error(logits, expected_logits) < 1e-4
    for boundary, states in enumerate(expected):
        assert relative_error(taps[boundary], states) < 1e-4, f"boundary {boundary}"
