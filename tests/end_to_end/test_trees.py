"""Trees of drafts through a real `.pte`: the text is that of plain decoding, whatever the shape."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.decode.shape import Shape
from support.runner.mixed_prompts import mixed_prompts

SHAPES = [(1, 2, 2), (1, 8, 8), (2, 8, 40), (3, 2, 7), (5, 4, 16), (6, 8, 32), (7, 8, 63),
          (8, 3, 63), (15, 2, 30)]  # fmt: skip
PATHS = "mc_sim = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 0]]"


@pytest.mark.parametrize("fixture", ["tiny", "random_runner"])
def test_a_tree_never_changes_the_tokens(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    file = tmp_path / "paths.py"
    file.write_text(PATHS)
    trees = itertools.cycle([*SHAPES, str(file)])
    for prompt in mixed_prompts(runner, 40)[::3]:
        plain = runner.generate(prompt, 20, speculate=False)
        for tree in itertools.islice(trees, 3):
            result = runner.generate(prompt, 20, tree=tree)
            assert result.token_ids == plain.token_ids, (len(prompt), tree)
            assert result.finish_reason == plain.finish_reason


@pytest.mark.parametrize("fixture", ["tiny", "random_runner"])
def test_nor_does_choosing_one(fixture: str, request: pytest.FixtureRequest) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    for prompt in mixed_prompts(runner, 40)[::5]:
        plain = runner.generate(prompt, 40, speculate=False)
        result = runner.generate(prompt, 40, tree="auto")
        assert result.token_ids == plain.token_ids, len(prompt)
        assert sum(result.stats.rounds_by_shape.values()) == result.stats.rounds


def test_a_chain_is_the_tree_with_one_branch(tiny: Runner) -> None:
    for prompt in mixed_prompts(tiny)[::40]:
        chain, tree = tiny.generate(prompt, 30, 4), tiny.generate(prompt, 30, tree=(4, 1, 4))
        assert tree.token_ids == chain.token_ids
        assert tree.stats.accepted_lengths == chain.stats.accepted_lengths


def test_a_tree_accepts_what_its_likeliest_chain_would_and_more(random_runner: Runner) -> None:
    """Whose head is right by chance alone: 16 guesses at the next token beat one."""
    prompts = mixed_prompts(random_runner)[::10]
    accepted = {
        tree: sum(random_runner.generate(p, 30, tree=tree).stats.accepted for p in prompts)
        for tree in ((1, 1, 1), (1, 16, 16))
    }
    assert accepted[1, 16, 16] > accepted[1, 1, 1]


def test_depths_and_ranks_are_counted(tiny: Runner) -> None:
    prompt = tiny.tokenizer.encode("Ada has 27 marbles. Marco has 6 times as many. How many?")
    result = tiny.generate(prompt, 60, tree=(4, 3, 12))
    stats = result.stats
    assert stats.tree == Shape(4, 3, 12)
    assert stats.drafted == 12 * stats.rounds
    cut = stats.rounds + stats.accepted - stats.emitted  # of the last round, by the text's end
    assert stats.emitted == len(result.token_ids) - 1 and cut in (0, 1)
    assert sum(stats.accepted_at_rank) == stats.accepted == sum(stats.accepted_at)
    assert len(stats.offered_at_rank) == 3 and stats.offered_at_rank[0] >= stats.offered_at_rank[2]
    assert stats.reached[0] == stats.rounds


@pytest.mark.parametrize("tree", [(6, 8), (6.0, 8, 32), (6, 8, "32"), 6])
def test_what_is_no_tree_is_refused(tiny: Runner, tree: Any) -> None:
    with pytest.raises(SettingError, match="expected \\(depth, top-k, nodes\\), or a file"):
        tiny.generate([5], 4, tree=tree)


def test_ranks_that_a_file_leaves_out_are_counted(tiny: Runner, tmp_path: Path) -> None:
    (tmp_path / "paths").write_text("[[0], [2], [7], [0, 3]]")
    stats = tiny.generate(list(range(5, 30)), 40, tree=tmp_path / "paths").stats
    assert stats.offered_at_rank[0] == stats.offered_at_rank[2] > stats.offered_at_rank[1] == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--tree", "16,2,32"], "tree 16,2,32: the depth must be 1 to 15"),
        (["--tree", "6,8,64"], "tree 6,8,64: there must be 1 to 63 nodes"),
        (["--tree", "nothing"], "neither DEPTH,TOPK,NODES like 6,8,32 nor a file of paths"),
        (["--tree", "6,8,32", "--chain-len", "4"], "name one of them"),
        (["--tree", "6,8,32", "--drafter", "ngram"], "drafter 'ngram' proposes chains"),
        (["--tree", "auto", "--drafter", "ngram"], "drafter 'ngram' proposes chains"),
        (["--tree", "auto", "--chain-len", "auto"], "name one of them"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tiny: Runner, options: list[str], why: str) -> None:
    found = CliRunner().invoke(main, [str(tiny.directory), "--prompt", "a", *options])
    assert found.exit_code == 1 and why in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_the_command_says_what_the_tree_was_worth(tiny: Runner) -> None:
    question = "Ada has 27 marbles. Marco has 6 times as many. How many do they have together?"
    command = [str(tiny.directory), "--prompt", question, "--tree", "6,8,32", "--json"]
    found = CliRunner().invoke(main, command)
    assert found.exit_code == 0, found.output
    stats = json.loads(found.stdout)
    assert stats["tree"] == "6,8,32" and stats["drafted"] == 32 * stats["rounds"]
    assert stats["acceptance_by_rank"][0] > 0.5
