"""What is said of outputs that speculation changed."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from eagle_aot.lab.checks.lossless import (
    OWN_AND_SCRIPT,
    Tally,
    check_lossless,
    compare,
    with_script,
)
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.results.stats import Stats

PLAIN = [5, 6, 7, 8]
PATHS = (0,), (1,), (1, 0), (1, 2), (1, 2, 1)


def checked(
    speculative: list[int],
    directory: Path,
    logits: Callable[[list[int]], torch.Tensor] | None = None,
) -> Tally:
    """What is said of one prompt whose speculative output is that."""

    def encode(ids: list[int], raw: bool) -> list[int]:
        return ids

    def generate(prompt: object, *told: Any, speculate: bool = True) -> SimpleNamespace:
        token_ids = speculative if speculate else PLAIN
        return SimpleNamespace(token_ids=token_ids, stats=Stats(chain_len=2))

    runner = cast(Runner, SimpleNamespace(generate=generate, encode=encode, directory=directory))
    found = check_lossless(runner, [[1, 2]], [2, 4], 4, logits=logits)
    assert (found.prompts, found.compared, found.tokens) == (1, 2, 2 * len(PLAIN))
    return found


@pytest.mark.parametrize(
    ("speculative", "place", "tokens"),
    [
        ([5, 9, 7, 8], 1, (6, 9)),
        ([5, 6, 7], 3, (8, None)),
        ([*PLAIN, 3], 4, (None, 3)),
        ([0], 0, (5, 0)),
    ],
)
def test_the_first_token_that_differs_is_named(
    speculative: list[int], place: int, tokens: tuple[int | None, int | None], tmp_path: Path
) -> None:
    tally = checked(speculative, tmp_path)
    first, second = tally.differences
    assert (first.chain_len, second.chain_len) == (2, 4)
    for one in (first, second):
        assert (one.prompt, one.position, (one.plain, one.speculative)) == (1, place, tokens)
        assert one.nats is one.plain_text is None
    assert [*tally.lines()][-1] == "0 of 2 outputs identical, 8 tokens compared"


def test_equal_outputs_are_no_difference(tmp_path: Path) -> None:
    tally = checked(PLAIN, tmp_path)
    assert tally.differences == [] and tally.identical == 2


def test_the_gap_is_the_targets_behind_what_both_share(tmp_path: Path) -> None:
    seen = []

    def logits(ids: list[int]) -> torch.Tensor:
        seen.append(ids)
        return torch.arange(10.0)

    first, _ = checked([5, 9, 7, 8], tmp_path, logits).differences
    assert seen[0] == [1, 2, 5] and first.nats == 6 - 9


def test_drafts_of_a_script_are_right_in_some_places(tiny: Runner) -> None:
    """So that rounds of every kind are compared, whatever the head is worth."""
    found = list(compare(tiny, [2, 40, 41], [1, 4], 20, OWN_AND_SCRIPT))
    assert [(o.chain_len, o.drafts) for o in found] == [
        (1, "own"),
        (1, "scripted"),
        (4, "own"),
        (4, "scripted"),
    ]
    assert all(one.identical for one in found)
    lengths = found[-1].stats.accepted_lengths
    assert sum(count > 0 for count in lengths) > 1


@pytest.mark.parametrize("tree", [Shape(3, 2, 6), Shape(7, 8, 63), Shape.of_paths(PATHS)])
def test_so_are_those_of_a_tree_on_paths_that_are_not_the_likeliest(
    tiny: Runner, tree: Shape
) -> None:
    """A tree of paths too, of which the last is a longest one."""
    _, found = compare(tiny, [2, 40, 41], [], 40, OWN_AND_SCRIPT, [tree])
    assert (found.drafts, found.tree, found.identical) == ("scripted", tree, True)
    lengths = found.stats.accepted_lengths
    assert sum(count > 0 for count in lengths) > 1


def test_nor_do_they_run_on_behind_the_context(tiny: Runner) -> None:
    prompt = [7] * (tiny.constants.max_seq_len - 5)
    plain = tiny.generate(prompt, 40, speculate=False).token_ids
    assert with_script(tiny, prompt, plain, 4, 40)[0] == plain
