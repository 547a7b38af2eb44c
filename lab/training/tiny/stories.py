"""Worked arithmetic stories: an endless, seeded corpus of word problems with their solutions.

A story is a question in plain English and an answer that shows every step as an equation and ends
with a line ``#### N``. Names, things, numbers and the paraphrase of the question vary; given the
question, the answer is a function of it. So a very small model can learn the text, and right
answers can be counted: see `final_answer`. `stories.toml` has names, things and situations.
"""

import hashlib
import operator
import random
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "test"]

DATA: dict[str, Any] = tomllib.loads(Path(__file__).with_name("stories.toml").read_text("utf-8"))
PEOPLE = [
    *((name, "she", "her") for name in DATA["women"]),
    *((name, "he", "his") for name in DATA["men"]),
]
# One question in 64 is held out.
HELD_OUT_BUCKETS = 64
# Nothing is singular ("1 apples") and nothing has more than three digits.
RESULTS = range(2, 1000)

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}
_FINAL = re.compile(r"^#### (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SolutionStep:
    """One step of a solution: `result` is the name that the expression's value gets."""

    result: str
    expression: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Template:
    """One situation: the numbers to draw, paraphrases of its question, and its solution."""

    numbers: dict[str, range]
    questions: list[str]
    steps: list[SolutionStep]


def _template(table: dict[str, Any]) -> Template:
    spans = {
        name: DATA["ranges"][span] if isinstance(span, str) else span
        for name, span in table["numbers"].items()
    }
    numbers = {name: range(first, end) for name, (first, end) in spans.items()}
    return Template(numbers, table["questions"], [SolutionStep(*step) for step in table["steps"]])


TEMPLATES = [_template(table) for table in DATA["templates"]]


@dataclass(frozen=True, slots=True)
class Story:
    """A word problem, its worked solution, and the number the solution ends with."""

    question: str
    answer: str
    final: int


def stories(seed: int, split: Split | None = None) -> Iterator[Story]:
    """Yield stories without end; the same seed yields the same stories.

    `split` selects the training or the held-out questions. A question's split depends on its text
    alone, so the splits are disjoint for all seeds.
    """
    rng = random.Random(seed)
    while True:
        story = _write(rng.choice(TEMPLATES), rng)
        if split is None or is_held_out(story.question) == (split == "test"):
            yield story


def is_held_out(question: str) -> bool:
    """Return whether a question is in the test split, by a stable hash of its text."""
    digest = hashlib.sha256(question.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_BUCKETS == 0


def final_answer(text: str) -> int | None:
    """Return N of the last line ``#### N`` of an answer, None if there is no such line."""
    numbers = _FINAL.findall(text)
    return int(numbers[-1]) if numbers else None


def _write(template: Template, rng: random.Random) -> Story:
    words: dict[str, object] = {**_cast(rng), **_draw_numbers(template, rng)}
    question = rng.choice(template.questions).format_map(words)
    sentences = []
    for step in template.steps:
        left, sign, right = step.expression.split()
        operands = f"{_value(left, words)} {sign} {_value(right, words)}"
        words["equation"] = f"{operands} = {words[step.result]}"
        sentences.append(step.sentence.format_map(words))
    final = _value(template.steps[-1].result, words)
    return Story(question, " ".join(sentences) + f"\n#### {final}", final)


def _cast(rng: random.Random) -> dict[str, str]:
    """Draw two people and two kinds of things."""
    (name, she, her), (friend, _, _) = rng.sample(PEOPLE, 2)
    things, others = rng.sample(DATA["things"], 2)
    return {
        "name": name, "she": she, "She": she.capitalize(), "her": her,
        "friend": friend, "things": things, "others": others,
    }  # fmt: skip


def _draw_numbers(template: Template, rng: random.Random) -> dict[str, int]:
    """Draw the numbers of a template until every step comes out exact and within `RESULTS`."""
    while True:
        numbers = {name: rng.choice(span) for name, span in template.numbers.items()}
        if all(_take(step.result, step.expression, numbers) for step in template.steps):
            return numbers


def _take(result: str, expression: str, numbers: dict[str, int]) -> bool:
    """Evaluate one step into `numbers`; return whether it is exact and in range."""
    left_name, sign, right_name = expression.split()
    left, right = _value(left_name, numbers), _value(right_name, numbers)
    numbers[result] = _OPERATORS[sign](left, right)
    exact = sign != "/" or left % right == 0
    return exact and numbers[result] in RESULTS


def _value(operand: str, words: dict[str, object] | dict[str, int]) -> int:
    """Return the value of an operand: a number's name, or a literal."""
    return int(operand) if operand.isdigit() else int(str(words[operand]))
