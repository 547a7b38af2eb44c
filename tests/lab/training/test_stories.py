"""The corpus of the shipped pair: right arithmetic, and a split that cannot leak."""

import itertools
import re
from pathlib import Path

import pytest

from eagle_aot.lab.training.tiny.stories import final_answer, is_held_out, stories

SCRIPTS = Path(__file__).parents[3] / "scripts"


def test_the_same_seed_tells_the_same_stories() -> None:
    first, again = (list(itertools.islice(stories(5), 50)) for _ in range(2))
    assert first == again
    assert first != list(itertools.islice(stories(6), 50))


def test_train_and_test_never_meet() -> None:
    train = {s.question for s in itertools.islice(stories(1, "train"), 4000)}
    test = {s.question for s in itertools.islice(stories(2, "test"), 400)}
    assert not train & test
    assert all(map(is_held_out, test)) and not any(map(is_held_out, train))


def test_every_equation_is_true() -> None:
    equation = re.compile(r"(\d+(?: [-+*/] \d+)+) = (\d+)")
    for story in itertools.islice(stories(3), 1000):
        found = equation.findall(story.answer)
        assert found
        for left, right in found:
            assert eval(left) == int(right), story
        assert final_answer(story.answer) == story.final == int(found[-1][1])


@pytest.mark.parametrize(
    ("text", "number"), [("so 3\n#### 12", 12), ("#### 12 apples", None), ("12", None), ("", None)]
)
def test_the_final_answer_is_the_marked_one(text: str, number: int | None) -> None:
    assert final_answer(text) == number


def test_the_demo_asks_what_training_never_saw() -> None:
    question = re.search(r'question="(.*)"', (SCRIPTS / "demo").read_text())
    assert question is not None and is_held_out(question.group(1))
