"""Llama and its relatives compared with random transformers models of many geometries."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.step import longest_chunk, ring_slots
from support.checkpoint_edits import edit_tensors
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
    """Draw a geometry of any family."""
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


CHUNKS = [70, 1]  # a prompt chunk, then plain decoding


def assert_matches(
    model: PreTrainedModel, directory: Path, max_seq_len: int, tokens: Tensor
) -> None:
    """Check logits of a prompt and of the tokens after it."""
    target = load_target(directory, max_seq_len)
    logits, _ = run_in_chunks(target, tokens, CHUNKS)
    assert (logits - oracle_states(model, tokens)[0]).abs().max() < 1e-4


BIASED = {"attention_bias": True}


@pytest.mark.parametrize(("family", "changes"), [
    ("llama", BIASED),
    ("llama", BIASED | {"mlp_bias": True, "hidden_act": "swish", "tie_word_embeddings": False}),
    ("qwen3", BIASED),
    ("qwen2", SLIDING),
    ("qwen2", {"rope_parameters": YARN_ROPE, "tie_word_embeddings": False}),
    ("mistral", {"sliding_window": 8}),
])  # fmt: skip
def test_variants_match_transformers(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    model = random_pre_norm(family, **changes)
    assert_matches(model, save(model, tmp_path), 96, random_tokens(80))
    logits = oracle_states(model, random_tokens(80))[0]
    plain = oracle_states(random_pre_norm("llama"), random_tokens(80))[0]
    assert (logits - plain).abs().max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("has_head", [False, True])
def test_a_base_model_saved_without_a_prefix_is_read(
    tmp_path: Path, family: str, has_head: bool
) -> None:
    """With a table of its own, or tied and without any."""
    model = random_pre_norm(family, tie_word_embeddings=not has_head)
    model.model.save_pretrained(tmp_path)
    if has_head:
        table = model.lm_head.weight.detach().clone()
        with pytest.raises(CheckpointError, match="missing: a base model saved without its head"):
            load_target(tmp_path, 96)
        edit_tensors(tmp_path, lambda tensors: tensors.update({"lm_head.weight": table}))
    assert_matches(model, tmp_path, 96, random_tokens(80))


@pytest.mark.parametrize("window", [8, 31, 32])
def test_a_mistral_slides_unless_its_window_holds_the_context(tmp_path: Path, window: int) -> None:
    save(random_pre_norm("mistral", sliding_window=window), tmp_path)
    assert load_target(tmp_path, 32).sliding_window == (window if window < 32 else 0)


LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [1.5 + i * i for i in range(8)],
    "original_max_position_embeddings": 24,
}


@pytest.mark.parametrize("changes", [{}, {"attention_factor": 1.3}, {"factor": 3.0}])
@pytest.mark.parametrize(("length", "max_seq_len"), [(24, 24), (25, 25), (80, 96)])
def test_a_longrope_has_the_table_of_the_exports_length(
    tmp_path: Path, changes: dict[str, Any], length: int, max_seq_len: int
) -> None:
    """transformers takes the table of each text's own length, here that of the export."""
    model = random_pre_norm("llama", rope_parameters=LONGROPE | changes)
    assert_matches(model, save(model, tmp_path), max_seq_len, random_tokens(length))


def test_a_text_has_one_table_of_a_longrope_from_its_beginning(tmp_path: Path) -> None:
    """Where an export may go beyond the original context, short texts have the long table, too."""
    model = random_pre_norm("llama", rope_parameters=LONGROPE)
    target, tokens = load_target(save(model, tmp_path), 96), random_tokens(80)
    whole, _ = run_in_chunks(target, tokens, CHUNKS)
    target.reset_cache()
    short, _ = run_in_chunks(target, tokens[:, :10], [10])
    torch.testing.assert_close(short, whole[:10], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_dynamic_rope_is_plain_up_to_the_models_context(tmp_path: Path, family: str) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}
    model = random_pre_norm(family, rope_parameters=rope, max_position_embeddings=80)
    save(model, tmp_path)
    assert_matches(model, tmp_path, 80, random_tokens(80))
    with pytest.raises(UnsupportedError, match="of more than 80 tokens: --max-seq-len may be at"):
        load_target(tmp_path, 81)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_logits_are_close_to_float32(tmp_path: Path, family: str) -> None:
    model, tokens = random_pre_norm(family), random_tokens(24)
    expected, _ = oracle_states(model, tokens)
    target = load_target(save(model, tmp_path), 32, torch.bfloat16)
    logits, _ = run_in_chunks(target, tokens, [8])
    assert logits.dtype == torch.float32
    assert relative_error(logits, expected) < 0.03
