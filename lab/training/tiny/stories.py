"""Worked arithmetic stories: an endless, seeded corpus of word problems with their solutions.

A story is a question in plain English and an answer that shows every step as an equation and ends
with a line ``#### N``. Names, things, numbers and the paraphrase of the question vary; given the
question, the answer is a function of it. That makes the text learnable by a very small model, and
its correctness can be counted: see `final_answer`.
"""

import hashlib
import operator
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from eagle_aot.lab.training.tiny.story_templates import TEMPLATES, Template

Split = Literal["train", "test"]

# name, "she" or "he", "her" or "his"
PEOPLE = [
    *((name, "she", "her") for name in (
        "Maya", "Lena", "Olga", "Ruth", "Nina", "Ada", "Emma", "Clara", "Zoe", "Ines", "Tara",
        "Hana", "Lily", "Vera", "Rosa", "Elif", "Aisha", "Greta", "Paula", "Mei", "Sofia", "Anna",
        "Bianca", "Dora", "Freya", "Jasmin", "Katrin", "Leila",
    )),
    *((name, "he", "his") for name in (
        "Omar", "Tom", "Ravi", "Leo", "Hugo", "Ben", "Karl", "Ivan", "Noah", "Jonas", "Felix",
        "Sam", "Max", "Pablo", "Kenji", "Amir", "Oskar", "Luca", "Nils", "Dev", "Marco", "Yusuf",
        "Anton", "Boris", "Emil", "Goran", "Henrik", "Tariq",
    )),
]  # fmt: skip

THINGS = [
    "apples", "pears", "lemons", "oranges", "plums", "peaches", "cookies", "muffins", "candies",
    "pencils", "crayons", "markers", "notebooks", "stickers", "stamps", "coins", "marbles", "beads",
    "buttons", "shells", "stones", "cards", "balloons", "toys", "books", "postcards", "ribbons",
    "candles", "cups", "plates", "bottles", "seeds", "tulips", "roses", "bricks", "tiles", "nails",
    "cherries", "melons", "carrots", "onions", "erasers", "badges", "magnets", "feathers", "acorns",
]  # fmt: skip

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
class Story:
    """A word problem, its worked solution, and the number the solution ends with."""

    question: str
    answer: str
    final: int


def stories(seed: int, split: Split | None = None) -> Iterator[Story]:
    """Yields stories without end; the same seed yields the same stories.

    `split` keeps only the training or only the held-out questions. Which of the two a question is
    depends on its text alone, so the splits stay disjoint whatever the seeds are.
    """
    rng = random.Random(seed)
    while True:
        story = _tell(rng.choice(TEMPLATES), rng)
        if split is None or is_held_out(story.question) == (split == "test"):
            yield story


def is_held_out(question: str) -> bool:
    """Whether a question belongs to the test split, by a stable hash of its text."""
    digest = hashlib.sha256(question.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_BUCKETS == 0


def final_answer(text: str) -> int | None:
    """Reads N from the last line ``#### N`` of an answer, None if there is no such line."""
    found = _FINAL.findall(text)
    return int(found[-1]) if found else None


def _tell(template: Template, rng: random.Random) -> Story:
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
    """Draws two people and two kinds of things."""
    (name, she, her), (friend, _, _) = rng.sample(PEOPLE, 2)
    things, others = rng.sample(THINGS, 2)
    return {
        "name": name, "she": she, "She": she.capitalize(), "her": her,
        "friend": friend, "things": things, "others": others,
    }  # fmt: skip


def _draw_numbers(template: Template, rng: random.Random) -> dict[str, int]:
    """Draws the numbers of a template until every step comes out exact and within `RESULTS`."""
    while True:
        numbers = {name: rng.choice(span) for name, span in template.numbers.items()}
        if all(_take(step.result, step.expression, numbers) for step in template.steps):
            return numbers


def _take(result: str, expression: str, numbers: dict[str, int]) -> bool:
    """Works out one step into `numbers`; False if the step is not a sound one."""
    left_name, sign, right_name = expression.split()
    left, right = _value(left_name, numbers), _value(right_name, numbers)
    numbers[result] = _OPERATORS[sign](left, right)
    exact = sign != "/" or left % right == 0
    return exact and numbers[result] in RESULTS


def _value(operand: str, words: dict[str, object] | dict[str, int]) -> int:
    """An operand is the name of a number or a literal."""
    return int(operand) if operand.isdigit() else int(str(words[operand]))
