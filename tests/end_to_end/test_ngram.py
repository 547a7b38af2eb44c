"""Prompt lookup and draft trees through the real `.pte` give the tokens of plain decoding."""

import itertools
import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.decode.shape import AUTO_CHAINS, ChainLen
from eagle_aot.runtime_runner.decode.stats import Stats
from support.runner.lossless import ShuffledChooser, mixed_prompts

LENGTHS: list[ChainLen] = [1, 4, 7, "auto"]


@pytest.fixture(scope="module")
def lookup(tiny_artifact: Path) -> Runner:
    """The shipped pair without its head."""
    return load_artifact(tiny_artifact, drafter="ngram")


def repeated_questions(runner: Runner) -> list[list[int]]:
    """Return problems after themselves and their answers."""
    prompts = []
    for story in itertools.islice(stories(2, "test"), 4):
        question = runner.tokenizer.encode(story.question)
        *answer, _ = runner.generate(question, 128, speculate=False).token_ids
        prompts.append([*question, *answer, *question])
    return prompts


def cycles(runner: Runner) -> list[list[int]]:
    """Return random tokens that repeat."""
    rng = random.Random(3)
    units = [[rng.randrange(runner.constants.vocab_size) for _ in range(n)] for n in (1, 3, 8, 20)]
    return [unit * (60 // len(unit)) for unit in units]


@pytest.mark.slow
def test_copying_is_drafted_and_changes_no_token(lookup: Runner) -> None:
    prompts = [*repeated_questions(lookup), *cycles(lookup)]
    plain = [lookup.generate(prompt, 48, speculate=False) for prompt in prompts]
    for chain_len in LENGTHS:
        found = []
        for prompt, expected in zip(prompts, plain, strict=True):
            result = lookup.generate(prompt, 48, chain_len)
            assert (result.token_ids, result.drafter) == (expected.token_ids, "ngram")
            assert result.finish_reason == expected.finish_reason
            found.append(result.stats)
        stats = Stats.total(found)
        assert stats.accepted > 0
        if chain_len in (4, 7):
            assert stats.tau is not None and stats.tau > 1.8, "most of a copy is drafted"


def test_no_order_of_chain_lengths_changes_a_token(
    lookup: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = lookup.adaptive_schedule(False)
    monkeypatch.setattr(schedule, "chooser", ShuffledChooser(schedule.chooser.costs))
    lengths = set()
    for prompt in [*repeated_questions(lookup), *mixed_prompts(lookup, 40)[1::4]]:
        plain = lookup.generate(prompt, 40, speculate=False)
        result = lookup.generate(prompt, 40, "auto")
        assert result.token_ids == plain.token_ids, len(prompt)
        lengths |= {k for k, rounds in enumerate(result.stats.rounds_by_chain_len) if rounds}
    assert lengths == {chain.depth for chain in AUTO_CHAINS}


SHAPES = [(1, 2, 2), (1, 8, 8), (2, 8, 40), (3, 2, 7), (5, 4, 16), (6, 8, 32), (7, 8, 63),
          (8, 3, 63), (15, 2, 30)]  # fmt: skip
PATHS = "mc_sim = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 0]]"


@pytest.mark.parametrize("fixture", ["tiny", pytest.param("batch_runner", marks=pytest.mark.slow)])
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
