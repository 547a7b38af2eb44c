"""Rotary frequencies, compared with those of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.rope import PROPORTIONAL, ProportionalRope, Rope, read_rope
from support.pre_norm_oracle import LLAMA3_ROPE, YARN_ROPE, rope_frequencies


def read(**config: Any) -> Rope:
    return read_rope(ConfigSection(config, Path("config.json")))


PARAMETERS = st.one_of(
    st.fixed_dictionaries({"rope_type": st.sampled_from(["default", "linear"])}),
    st.fixed_dictionaries(
        {
            "rope_type": st.just("llama3"),
            "low_freq_factor": st.sampled_from([0.5, 1.0, 2.0]),
            "high_freq_factor": st.sampled_from([4.0, 8.0]),
        }
    ),
    st.fixed_dictionaries(
        {"rope_type": st.just("yarn")},
        optional={
            "beta_fast": st.sampled_from([8.0, 32.0]),
            "beta_slow": st.sampled_from([1.0, 4.0]),
            "attention_factor": st.sampled_from([0.7, 1.2]),
            "mscale": st.sampled_from([0.7, 1.0]),
            "mscale_all_dim": st.sampled_from([0.5, 1.0]),
            "truncate": st.booleans(),
        },
    ),
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    parameters=PARAMETERS,
    factor=st.sampled_from([0.5, 1.0, 4.0, 32.0]),
    theta=st.sampled_from([1e3, 1e4, 5e5]),
    context=st.sampled_from([64, 2048, 8192]),
    head_dim=st.sampled_from([16, 64, 128]),
)
def test_frequencies_match_transformers(
    parameters: dict[str, Any], factor: float, theta: float, context: int, head_dim: int
) -> None:
    common = {"factor": factor, "rope_theta": theta, "original_max_position_embeddings": context}
    config = parameters | common
    rope = read(rope_parameters=config, max_position_embeddings=8192)
    expected, attention_factor = rope_frequencies(config, head_dim, 8192)
    torch.testing.assert_close(rope.inv_freq(head_dim), expected.float(), rtol=2e-6, atol=1e-9)
    assert rope.attention_factor == pytest.approx(attention_factor)


@pytest.mark.parametrize("share", [0.25, 0.3, 1.0])
@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_a_proportional_rope_rotates_only_its_share_of_pairs(share: float, factor: float) -> None:
    rope = ProportionalRope(theta=1e6, partial_rotary_factor=share, factor=factor)
    config = {"partial_rotary_factor": share, "factor": factor, "rope_type": PROPORTIONAL}
    expected, _ = rope_frequencies(config | {"rope_theta": 1e6}, 64, 8192)
    torch.testing.assert_close(rope.inv_freq(64), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn", "proportional"])
def test_frequencies_can_be_made_on_the_meta_device(kind: str) -> None:
    with FakeTensorMode():
        assert Rope(theta=1e4, rope_type=kind, context=64).embedding(16).inv_freq.shape == (8,)


def test_tables_are_multiplied_by_the_attention_factor() -> None:
    plain, grown = Rope(theta=100.0), Rope(theta=100.0, attention_factor=1.5)
    positions = torch.arange(5)
    for a, b in zip(plain.embedding(8)(positions), grown.embedding(8)(positions), strict=True):
        torch.testing.assert_close(1.5 * a, b)


@pytest.mark.parametrize(("positions", "value", "source"), [
    (24, "short factors", "24 positions, at most the original 24"),
    (25, "long factors", "25 positions, more than the original 24"),
])  # fmt: skip
def test_the_factors_of_a_longrope_are_a_recorded_decision(
    positions: int, value: str, source: str
) -> None:
    config = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    context = {"original_max_position_embeddings": 24, "max_position_embeddings": 96}
    section = ConfigSection({"rope_parameters": config} | context, Path("config.json"))
    assert read_rope(section, 8, positions).decision == {"value": value, "source": source}
    assert Rope(theta=1e4).decision == {}


def test_the_older_config_spelling_is_read_alike() -> None:
    older = {k: v for k, v in LLAMA3_ROPE.items() if k not in ("rope_type", "rope_theta")}
    for key in ("rope_type", "type"):
        rope = read(rope_theta=1000.0, rope_scaling={key: "llama3", **older})
        assert rope == read(rope_parameters=LLAMA3_ROPE)
    assert read(rope_theta=1e6, rope_scaling=None) == Rope(theta=1e6)
    assert read(rope_parameters={"rope_type": "default", "rope_theta": 1e6}) == Rope(theta=1e6)
    assert read() == Rope(theta=1e4)


def test_the_original_context_defaults_to_max_position_embeddings() -> None:
    unnamed = {k: v for k, v in YARN_ROPE.items() if k != "original_max_position_embeddings"}
    assert read(rope_parameters=unnamed, max_position_embeddings=24) == read(
        rope_parameters=YARN_ROPE
    )
    with pytest.raises(CheckpointError, match="'max_position_embeddings' is missing"):
        read(rope_parameters=unnamed)


@pytest.mark.parametrize(("config", "message"), [
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' is not"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope' is not"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partly rotated"),
    ({"partial_rotary_factor": 0.5}, "partly rotated"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "by kind of layer"),
])  # fmt: skip
def test_rope_types_without_fixed_frequencies_are_refused(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read(**config)


@pytest.mark.parametrize(("changes", "message"), [
    ({"factor": None}, "'factor' is missing"),
    ({"factor": -1.0}, "factor is -1.0, expected a positive number"),
    ({"low_freq_factor": 4.0}, "low_freq_factor 4.0 is not below 4.0"),
    ({"original_max_position_embeddings": 0}, "expected a positive integer"),
])  # fmt: skip
def test_an_invalid_config_value_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(rope_parameters=LLAMA3_ROPE | changes)


@pytest.mark.parametrize(("changes", "message"), [
    ({"rope_theta": 1.0}, r"rope_theta 1\.0 is not above 1"),
    ({"beta_fast": 1e308}, r"config.json: odd numbers of a yarn rope \(math"),
])  # fmt: skip
def test_yarn_parameters_outside_the_domain_of_logarithms_are_named(
    changes: dict[str, float], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(rope_parameters=YARN_ROPE | changes)
