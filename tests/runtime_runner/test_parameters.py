"""What a request asks for: refused in one line, kept in a line of JSON, a seed for each answer."""

import json
import math
from typing import Any

import pytest

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.parameters import Parameters
from eagle_aot.runtime_runner.rounds.shape import Shape
from eagle_aot.runtime_runner.sampling.parameters import Choice, Sampling

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
def test_what_is_out_of_range_is_refused_by_name(bad: dict[str, Any]) -> None:
    (name,) = bad
    words = name.replace("_", " ") if name == "stop_texts" else name
    with pytest.raises(SettingError, match=words) as refused:
        Parameters(**bad)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 120


@pytest.mark.parametrize(
    "outside", [{"logit_bias": {50: 1.0}}, {"allowed_ids": (3, 50)}], ids=["bias", "allowed"]
)
def test_ids_must_be_of_the_vocabulary(outside: dict[str, Any]) -> None:
    Parameters(**outside).check_vocabulary(51, frozenset())
    with pytest.raises(SettingError, match="token 50 is outside the vocabulary of 50"):
        Parameters(**outside).check_vocabulary(50, frozenset())


def test_something_must_be_left_to_choose() -> None:
    asked = Sampling(allowed_ids=(2, 3), min_tokens=1)
    asked.check_vocabulary(9, frozenset({2}))
    with pytest.raises(SettingError, match="every one of allowed_ids"):
        asked.check_vocabulary(9, frozenset({2, 3, 4}))
    Sampling(min_tokens=5).check_vocabulary(9, frozenset({2}))


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (Sampling(), Choice.GREEDY),
        (Sampling(top_k=5, top_p=0.5, min_p=0.1), Choice.GREEDY),
        (Sampling(temperature=1.0), Choice.SAMPLED),
        (Sampling(temperature=1.0, top_k=5), Choice.PROCESSED),
        (Sampling(repetition_penalty=1.1), Choice.PROCESSED),
        (Sampling(allowed_ids=(1,)), Choice.PROCESSED),
        (Sampling(min_tokens=1), Choice.PROCESSED),
    ],
)
def test_what_is_not_asked_for_costs_nothing(asked: Sampling, kind: Choice) -> None:
    assert asked.kind is kind


def test_a_line_of_json_asks_for_the_same_again() -> None:
    asked = Parameters(
        temperature=0.7, top_p=0.9, logit_bias={7: -1.5}, allowed_ids=[7, 8], seed=(1 << 64) - 1,
        tree=Shape(6, 8, 32), stop_texts=["a"], stop_ids=[3], max_new_tokens=9, echo=True,
    )  # fmt: skip
    line = json.loads(json.dumps(asked.to_json()))
    again = Parameters.from_json(line)
    assert again.tree == "6,8,32"
    assert again == Parameters(**{**vars(asked), "tree": "6,8,32"})
    assert Parameters().to_json() == {}
    assert Parameters(tree=(4, 3, 10)).to_json() == {"tree": "4,3,10"}
    with pytest.raises(SettingError, match="'top_q' is no parameter"):
        Parameters.from_json({"top_q": 1})


def test_answers_have_seeds_of_their_own() -> None:
    asked = Parameters(temperature=1.0, n=3, seed=(1 << 64) - 2)
    assert [one.seed for one in asked.answers()] == [(1 << 64) - 2, (1 << 64) - 1, 0]
    assert all(one.n == 1 and one.reuse for one in asked.answers())
    drawn = Parameters(temperature=1.0).answers()[0].seed
    assert drawn is not None and 0 <= drawn < 1 << 32
    assert drawn != Parameters(temperature=1.0).drawn().seed
    assert Parameters().drawn().seed is None, "nothing is drawn where nothing is sampled"
