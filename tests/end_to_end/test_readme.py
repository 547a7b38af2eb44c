"""What the README tells a stranger to type does what they expect."""

import re
from pathlib import Path

from eagle_aot.runtime_runner import Runner
from tiny_pair.stories import final_answer, is_held_out

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
ANSWERS = {"Ada has 27 marbles": 189, "If Mei owns 7 oranges": 63}


def test_its_questions_were_never_trained_on_and_are_answered(tiny: Runner) -> None:
    asked = re.findall(r'(?:--prompt |generate\(\s*)"([^"]{9,})"', README)
    assert len(set(asked)) == len(ANSWERS)
    for question in set(asked):
        expected = next(n for start, n in ANSWERS.items() if question.startswith(start))
        assert is_held_out(question)
        assert final_answer(tiny.generate(question).text or "") == expected


def test_its_links_lead_somewhere() -> None:
    root = Path(__file__).parents[2]
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (root / link).exists(), link
