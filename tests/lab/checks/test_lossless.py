"""Comparing outputs with plain decoding's, explaining differences; draws."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from eagle_aot.lab.checks import draws
from eagle_aot.lab.checks.draws import LOGITS, SAMPLINGS, draw, probabilities, statistics_of
from eagle_aot.lab.checks.lossless import (
    OWN_AND_SCRIPT,
    LosslessReport,
    check_lossless,
    compare,
    decode_with_script,
    last_logits,
    logits_of_target,
)
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.engine import Engine
from eagle_aot.runtime_runner.program.cache_pages import PAGE, BufferShape, CachePages
from eagle_aot.targets import load_target
from eagle_aot.targets.family import TINY_DIR
from support.gemma_oracle import random_gemma, random_tokens, save_text_layout
from support.hub import HubRepository, files_of, hub_server, use_hub
from support.runner.counted_memory import CountedMemory

PLAIN = [5, 6, 7, 8]
PATHS = (0,), (1,), (1, 0), (1, 2), (1, 2, 1)


def checked(
    speculative: list[int],
    directory: Path,
    logits: Callable[[list[int]], torch.Tensor] | None = None,
) -> LosslessReport:
    """Check one prompt with this speculative output."""

    def encode(ids: list[int], raw: bool) -> list[int]:
        return ids

    def generate(prompt: object, *options: Any, speculate: bool = True) -> SimpleNamespace:
        token_ids = speculative if speculate else PLAIN
        return SimpleNamespace(token_ids=token_ids, stats=Stats(chain_len=2))

    runner = cast(Runner, SimpleNamespace(generate=generate, encode=encode, directory=directory))
    report = check_lossless(runner, [[1, 2]], [2, 4], 4, target_logits=logits)
    assert (report.prompts, report.compared, report.tokens) == (1, 2, 2 * len(PLAIN))
    return report


@pytest.mark.parametrize(("speculative", "position", "tokens"), [
    ([5, 9, 7, 8], 1, (6, 9)), ([5, 6, 7], 3, (8, None)), ([*PLAIN, 3], 4, (None, 3)),
    ([0], 0, (5, 0)),
])  # fmt: skip
def test_first_token_that_differs_is_reported(
    speculative: list[int], position: int, tokens: tuple[int | None, int | None], tmp_path: Path
) -> None:
    report = checked(speculative, tmp_path)
    first, second = report.differences
    assert (first.chain_len, second.chain_len) == (2, 4)
    for one in (first, second):
        assert (one.prompt, one.position, (one.plain, one.speculative)) == (1, position, tokens)
        assert one.nats is None and one.plain_text is None
    assert [*report.lines()][-1] == "0 of 2 outputs identical, 8 tokens compared"


def test_equal_outputs_make_no_difference(tmp_path: Path) -> None:
    report = checked(PLAIN, tmp_path)
    assert report.differences == [] and report.identical == 2


def test_gap_is_of_the_targets_logits_after_the_common_prefix(tmp_path: Path) -> None:
    seen = []

    def logits(ids: list[int]) -> torch.Tensor:
        seen.append(ids)
        return torch.arange(10.0)

    first, _ = checked([5, 9, 7, 8], tmp_path, logits).differences
    assert seen[0] == [1, 2, 5] and first.nats == 6 - 9


def test_scripted_chains_are_accepted_in_part_and_change_no_token(tiny: Runner) -> None:
    """Rounds of every kind are compared, however good the head is."""
    comparisons = list(compare(tiny, [2, 40, 41], [1, 4], 20, OWN_AND_SCRIPT))
    assert [(one.chain_len, one.drafts) for one in comparisons] == [
        (1, "own"),
        (1, "scripted"),
        (4, "own"),
        (4, "scripted"),
    ]
    assert all(one.identical for one in comparisons)
    lengths = comparisons[-1].stats.accepted_lengths
    assert sum(count > 0 for count in lengths) > 1


@pytest.mark.parametrize("tree", [Shape(3, 2, 6), Shape(7, 8, 63), Shape.of_paths(PATHS)])
def test_scripted_trees_are_accepted_in_part_and_change_no_token(tiny: Runner, tree: Shape) -> None:
    _, scripted = compare(tiny, [2, 40, 41], [], 40, OWN_AND_SCRIPT, [tree])
    assert (scripted.drafts, scripted.tree, scripted.identical) == ("scripted", tree, True)
    lengths = scripted.stats.accepted_lengths
    assert sum(count > 0 for count in lengths) > 1


def test_scripted_drafts_end_with_the_context(tiny: Runner) -> None:
    prompt = [7] * (tiny.constants.max_seq_len - 5)
    plain = tiny.generate(prompt, 40, speculate=False).token_ids
    assert decode_with_script(tiny, prompt, plain, 4, 40)[0] == plain


def test_a_script_runs_where_there_is_memory(tiny: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = tiny.constants.flat_slots
    shape = BufferShape(1, tiny.constants.max_batch_size, slots, PAGE // 8)
    pages = CachePages([shape], CountedMemory(1, slots), slots, slots - tiny.constants.max_seq_len)
    monkeypatch.setattr(tiny, "engine", Engine(tiny.engine.schedule, pages=pages))
    decode_with_script(tiny, [2, 40, 41], [5, 6, 7, 8], 2, 4)
    assert pages.holds(tiny.engine.sequence_pool.order[0])


@pytest.mark.parametrize("length", [3, 8, 21])
def test_target_logits_are_those_of_transformers(length: int, tmp_path: Path) -> None:
    """For texts shorter and longer than the sliding window of 8."""
    model = random_gemma()
    target = load_target(save_text_layout(model, tmp_path), 32)
    for seed in (0, 1):  # the second text must see nothing of the first
        tokens = random_tokens(length, seed)
        expected = model(tokens).logits[0, -1]
        logits = last_logits(target, tokens[0].tolist())
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_draws_have_the_right_distribution(name: str) -> None:
    statistics = statistics_of(name, SAMPLINGS[name], range(4), 4096)
    assert statistics.fits, str(statistics)


def test_draws_of_another_distribution_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 % of a token's probability are many deviations at a hundred thousand draws."""
    exact = probabilities(SAMPLINGS["temperature 1"])
    exact[0] *= 1.05
    monkeypatch.setattr(draws, "probabilities", lambda sampling: exact / exact.sum())
    assert not statistics_of("other", SAMPLINGS["temperature 1"], range(10), 8192).fits


def test_draws_of_neighbouring_seeds_are_independent() -> None:
    """Their agreement is that of independent draws."""
    sampling = SAMPLINGS["temperature 1"]
    exact, count = probabilities(sampling), 8192
    agreed = (draw(sampling, 4, count) == draw(sampling, 5, count)).double().mean().item()
    chance = float((exact**2).sum())
    assert abs(agreed - chance) < 4 * (chance * (1 - chance) / count) ** 0.5


def test_equal_seeds_draw_equal_tokens() -> None:
    sampling = SAMPLINGS["all"]
    assert torch.equal(draw(sampling, 2**63 + 1, 500), draw(sampling, 2**63 + 1, 500))
    assert len(LOGITS) > draw(sampling, 3, 500).unique().numel() > 1


def test_a_target_has_the_names_that_an_export_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, tokens = TINY_DIR / "target", [1, 5, 9]
    expected = logits_of_target("gemma4-tiny", 32)(tokens)
    with hub_server({"org/Tiny": HubRepository(files_of(directory))}) as hub:
        use_hub(hub, tmp_path, monkeypatch)
        for name in (str(directory), "org/Tiny"):
            assert torch.equal(logits_of_target(name, 32)(tokens), expected)
