"""Rotary embeddings of heads, compared with those of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.export.drafters.head_rope import read_head_rope
from eagle_aot.targets.config_section import ConfigSection
from support.golden_cases import relative_error
from support.pre_norm_oracle import rope_tables

HEAD_DIM = 16
TRAINED = 32  # positions
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": YARN,
    "yarn mscale": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn attention": YARN | {"attention_factor": 1.5, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn whole": YARN | {"truncate": False},
}


def ours(rope: dict[str, Any], theta: float, positions: Tensor) -> tuple[Tensor, Tensor]:
    config = {"rope_parameters": rope | {"rope_theta": theta}, "max_position_embeddings": TRAINED}
    found = read_head_rope(ConfigSection(config, Path("config.json")))
    cos, signed_sin = found.embedding(HEAD_DIM)(positions)
    half = HEAD_DIM // 2
    return cos, torch.cat((-signed_sin[..., :half], signed_sin[..., half:]), dim=-1)


@pytest.mark.parametrize("theta", [10000.0, 150000.0])
@pytest.mark.parametrize("positions", [range(5), range(20, 60), [4000]], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_matches_transformers(
    variant: str, positions: range | list[int], theta: float
) -> None:
    input_pos = torch.tensor(list(positions))
    rope = VARIANTS[variant] | {"rope_theta": theta}
    expected = rope_tables(rope, HEAD_DIM, TRAINED, input_pos).float()
    found = torch.stack(ours(VARIANTS[variant], theta, input_pos))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_dynamic_frequencies_sink_only_beyond_the_trained_length() -> None:
    inside, outside = torch.arange(32), torch.arange(33)
    default = ours(VARIANTS["default"], 10000.0, outside)[0]
    dynamic = [ours(VARIANTS["dynamic"], 10000.0, p)[0] for p in (inside, outside)]
    torch.testing.assert_close(dynamic[0], default[:32], atol=1e-6, rtol=0)
    assert relative_error(dynamic[1][1:32], default[1:32]) > 1e-3


@pytest.mark.parametrize("kind", ["mrope", "default"])
def test_multimodal_rope_of_a_text_is_the_default(kind: str) -> None:
    """All three positions of a text token are the same."""
    rope = {"type": kind, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    section = ConfigSection({"rope_scaling": rope, "rope_theta": 5e6}, Path("config.json"))
    found = read_head_rope(section)
    assert (found.rope_type, found.theta) == ("default", 5e6)


def test_the_newer_key_wins() -> None:
    config = {
        "rope_parameters": {"rope_type": "default", "rope_theta": 7.0},
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_theta": 9.0,
    }
    found = read_head_rope(ConfigSection(config, Path("config.json")))
    assert (found.rope_type, found.theta) == ("default", 7.0)


@pytest.mark.parametrize(("rope", "error", "message"), [
    ({"rope_type": "longrope", "factor": 2.0}, UnsupportedError, "'longrope'.*in a draft head$"),
    ({"type": "su"}, UnsupportedError, "rope type 'su'"),
    ({"rope_type": "dynamic", "factor": 2.0}, CheckpointError, "max_position_embeddings' is m"),
    (VARIANTS["dynamic"] | {"partial_rotary_factor": 0.5}, UnsupportedError, "partly rotated"),
    (VARIANTS["llama3"] | {"high_freq_factor": 1.0}, CheckpointError, "is not below"),
])  # fmt: skip
def test_rope_variants_of_a_head_are_refused_in_one_line(
    rope: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as refusal:
        read_head_rope(ConfigSection({"rope_scaling": rope}, Path("config.json")))
    assert "\n" not in str(refusal.value)
