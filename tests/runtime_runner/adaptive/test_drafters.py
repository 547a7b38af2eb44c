"""Which of several drafters is chosen, by speeds that are made up."""

import pytest

from eagle_aot.runtime_runner.adaptive.drafters import SHARE, DrafterChooser

TEXT, ROUND = 200, 4  # tokens of a text, and of a round


def serve(
    chooser: DrafterChooser, speeds: dict[str, float], texts: int, places: int = 1
) -> list[str]:
    """Texts one after another, each at the speed of who is chosen for it."""
    chosen = []
    for _ in range(texts):
        chosen.append(name := chooser.choose(places))
        for _ in range(TEXT // ROUND):
            chooser.observe(places, name, ROUND, ROUND / speeds[name])
    return chosen


@pytest.mark.parametrize("fastest", ["a", "b", "c"])
def test_each_is_tried_once_and_then_the_fastest(fastest: str) -> None:
    speeds = {"a": 40.0, "b": 30.0, "c": 50.0} | {fastest: 100.0}
    chosen = serve(DrafterChooser("abc"), speeds, 10)
    assert chosen == ["a", "b", "c", *[fastest] * 7]


def test_trying_others_again_costs_no_more_than_its_share() -> None:
    speeds = {"slow": 20.0, "fast": 100.0, "near": 90.0}
    chosen = serve(DrafterChooser(list(speeds)), speeds, 2000)[3:]
    lost = sum(TEXT / speeds[name] - TEXT / speeds["fast"] for name in chosen)
    assert 0 < lost <= SHARE * len(chosen) * TEXT / speeds["fast"] * 1.1
    assert set(chosen) == set(speeds)


def test_one_that_becomes_faster_is_found() -> None:
    chooser = DrafterChooser(["a", "b"])
    assert serve(chooser, {"a": 100.0, "b": 80.0}, 30)[-5:] == ["a"] * 5
    assert serve(chooser, {"a": 40.0, "b": 80.0}, 60)[-5:] == ["b"] * 5


def test_texts_side_by_side_have_speeds_of_their_own() -> None:
    chooser = DrafterChooser(["a", "b"])
    assert serve(chooser, {"a": 100.0, "b": 10.0}, 4) == ["a", "b", "a", "a"]
    assert serve(chooser, {"a": 10.0, "b": 30.0}, 4, places=4) == ["a", "b", "b", "b"]
    assert serve(chooser, {"a": 100.0, "b": 10.0}, 1) == ["a"]


def test_a_few_tokens_are_not_believed() -> None:
    chooser = DrafterChooser(["a", "b"])
    assert chooser.choose(1) == "a"
    chooser.observe(1, "a", ROUND, 1.0)
    assert chooser.choose(1) == "a"
