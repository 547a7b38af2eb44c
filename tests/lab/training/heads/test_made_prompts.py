"""The prompts that templates make."""

import json
from itertools import islice
from pathlib import Path

import pytest

from eagle_aot.common.errors import SettingError
from eagle_aot.lab.training.heads.prompts import made
from eagle_aot.lab.training.heads.prompts.made import Conversation, data, made_conversations

EVALUATED = Path(__file__).parents[4] / "benchmarks" / "prompts" / "eight_kinds.jsonl"
COUNT = 300_000


def contents(conversation: Conversation) -> tuple[str, ...]:
    return tuple(message["content"] for message in conversation)


@pytest.mark.slow
def test_made_prompts_are_distinct_and_not_those_of_evaluations() -> None:
    evaluated = {json.loads(line)["prompt"].lower() for line in EVALUATED.read_text().splitlines()}
    assert len(evaluated) == 200
    found = set()
    for conversation in made_conversations(COUNT, 0):
        found.add(contents(conversation))
        assert conversation[-1]["content"].strip().lower() not in evaluated
    assert len(found) == COUNT
    assert not [turns for turns in islice(found, 10_000) if made.NAMED.search(turns[-1])]


def test_conversations_end_with_the_user() -> None:
    for conversation in made_conversations(2000, 1):
        roles = [message["role"] for message in conversation]
        spoken = roles[roles[0] == "system" :]
        assert spoken == ["user", "assistant"] * (len(spoken) // 2) + ["user"]


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    assert list(made_conversations(50, 3)) == list(islice(made_conversations(90, 3), 50))


def test_every_list_and_every_number_is_used() -> None:
    text = made.DATA.read_text()
    for name in [*data()["lists"], *data()["numbers"]]:
        assert f"{{{name}}}" in text or f"{{{name}!}}" in text, name


def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"kinds": {"one": {"weight": 1, "templates": ["{n}"]}}, "numbers": {"n": [1, 3]}}
    system = {"system": {"share": 0.0, "templates": []}, "lists": {}}
    monkeypatch.setattr(made, "data", lambda: few | system)
    with pytest.raises(SettingError, match="--prompts 4: the templates give 3 distinct ones"):
        list(made_conversations(4, 0))
