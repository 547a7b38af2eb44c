"""Parameters of requests: ranges, JSON, seeds of answers, and what a model recommends."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eagle_aot.common.errors import ArtifactError, SettingError
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.sampling.parameters import (
    GENERATION_CONFIG,
    SamplingMode,
    SamplingParams,
    recommended,
)

BAD = [
    {"temperature": -1.0}, {"temperature": math.nan}, {"temperature": math.inf},
    {"temperature": 101.0}, {"temperature": 1e-9}, {"temperature": "1"}, {"temperature": True},
    {"top_k": -1}, {"top_k": 1.5}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": math.nan},
    {"min_p": -0.1}, {"min_p": 2.0}, {"repetition_penalty": 0.0},
    {"repetition_penalty": math.inf}, {"presence_penalty": math.nan},
    {"frequency_penalty": -1000.0}, {"logit_bias": {-1: 1.0}}, {"logit_bias": {1: math.inf}},
    {"logit_bias": {"a": 1.0}}, {"allowed_ids": ()}, {"allowed_ids": (-4,)}, {"min_tokens": -1},
    {"min_tokens": 2**63},
    {"seed": -1}, {"seed": 1 << 64}, {"seed": 1.0}, {"n": 0}, {"n": 10_000},
    {"max_new_tokens": 0}, {"stop_texts": [f"stop {i}" for i in range(200)]},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_value_out_of_range_is_refused_by_name(bad: dict[str, Any]) -> None:
    (name,) = bad
    words = name.replace("_", " ") if name == "stop_texts" else name
    with pytest.raises(SettingError, match=words) as refused:
        GenerationParams(**bad)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 120


@pytest.mark.parametrize(
    "outside", [{"logit_bias": {50: 1.0}}, {"allowed_ids": (3, 50)}], ids=["bias", "allowed"]
)
def test_ids_must_be_in_the_vocabulary(outside: dict[str, Any]) -> None:
    GenerationParams(**outside).check_vocabulary(51, frozenset())
    with pytest.raises(SettingError, match="token 50 is outside the vocabulary of 50"):
        GenerationParams(**outside).check_vocabulary(50, frozenset())


def test_a_token_must_be_left_to_choose() -> None:
    params = SamplingParams(allowed_ids=(2, 3), min_tokens=1)
    params.check_vocabulary(9, frozenset({2}))
    with pytest.raises(SettingError, match="every one of allowed_ids"):
        params.check_vocabulary(9, frozenset({2, 3, 4}))
    SamplingParams(min_tokens=5).check_vocabulary(9, frozenset({2}))


@pytest.mark.parametrize(("params", "mode"), [
    (SamplingParams(), SamplingMode.GREEDY),
    (SamplingParams(top_k=5, top_p=0.5, min_p=0.1), SamplingMode.GREEDY),
    (SamplingParams(temperature=1.0), SamplingMode.SAMPLED),
    (SamplingParams(temperature=1.0, top_k=5), SamplingMode.PROCESSED),
    (SamplingParams(repetition_penalty=1.1), SamplingMode.PROCESSED),
    (SamplingParams(allowed_ids=(1,)), SamplingMode.PROCESSED),
    (SamplingParams(min_tokens=1), SamplingMode.PROCESSED),
])  # fmt: skip
def test_the_mode_is_the_least_that_the_parameters_need(
    params: SamplingParams, mode: SamplingMode
) -> None:
    assert params.mode is mode


def test_json_gives_the_same_parameters_again() -> None:
    lists: dict[str, Any] = {"allowed_ids": [7, 8], "stop_texts": ["a"], "stop_ids": [3]}
    params = GenerationParams(
        temperature=0.7, top_p=0.9, logit_bias={7: -1.5}, seed=(1 << 64) - 1, tree=Shape(6, 8, 32),
        max_new_tokens=9, echo=True, **lists,
    )  # fmt: skip
    again = GenerationParams.from_json(json.loads(json.dumps(params.to_json())))
    assert again.tree == "6,8,32"
    assert again == msgspec.structs.replace(params, tree="6,8,32")
    assert GenerationParams().to_json() == {}
    assert GenerationParams(tree=(4, 3, 10)).to_json() == {"tree": "4,3,10"}
    with pytest.raises(SettingError, match=r"unknown field `top_q`; did you mean top_p\?"):
        GenerationParams.from_json({"top_q": 1})


def test_answers_have_seeds_of_their_own() -> None:
    params = GenerationParams(temperature=1.0, n=3, seed=(1 << 64) - 2)
    assert [answer.seed for answer in params.answers()] == [(1 << 64) - 2, (1 << 64) - 1, 0]
    assert all(answer.n == 1 and answer.reuse for answer in params.answers())
    drawn = GenerationParams(temperature=1.0).answers()[0].seed
    assert drawn is not None and 0 <= drawn < 1 << 32
    assert drawn != GenerationParams(temperature=1.0).drawn().seed
    assert GenerationParams().drawn().seed is None, "nothing is drawn where nothing is sampled"


def test_parameters_are_those_of_the_file(tmp_path: Path) -> None:
    assert recommended(tmp_path) == {}
    found = {"do_sample": True, "top_k": 64, "top_p": 0.95, "eos_token_id": [1, 2]}
    (tmp_path / GENERATION_CONFIG).write_text(json.dumps(found))
    assert recommended(tmp_path) == {"temperature": 1.0, "top_k": 64, "top_p": 0.95}
    GenerationParams(**recommended(tmp_path))
    (tmp_path / GENERATION_CONFIG).write_text(json.dumps({**found, "do_sample": False}))
    assert recommended(tmp_path) == {}
    (tmp_path / GENERATION_CONFIG).write_text("{")
    with pytest.raises(ArtifactError, match=GENERATION_CONFIG):
        recommended(tmp_path)
