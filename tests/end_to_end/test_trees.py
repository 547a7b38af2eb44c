"""Trees of drafts through a real `.pte`: the text is that of plain decoding, whatever the shape."""

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.cli import main
from support.runner.lossless import mixed_prompts

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


def test_eagle_run_reports_the_acceptance_of_a_tree(tiny: Runner) -> None:
    question = "Ada has 27 marbles. Marco has 6 times as many. How many do they have together?"
    command = [str(tiny.directory), "--prompt", question, "--tree", "6,8,32", "--json"]
    found = CliRunner().invoke(main, command)
    assert found.exit_code == 0, found.output
    stats = json.loads(found.stdout)
    assert stats["tree"] == "6,8,32" and stats["drafted"] == 32 * stats["rounds"]
    assert stats["acceptance_by_rank"][0] > 0.5
