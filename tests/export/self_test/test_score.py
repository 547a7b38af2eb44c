"""A self-test counts, compares and judges, and prints its verdict."""

from dataclasses import replace
from io import StringIO

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor

from eagle_aot.export.self_test.score import (
    BLOCK,
    FEWEST_BLOCKS,
    STANDARD_ERRORS,
    Mean,
    RoundCounts,
    Score,
    is_better,
    log_gain,
    replay,
)
from eagle_aot.export.self_test.text import Reading
from eagle_aot.export.self_test.verdict import Entry, Verdict, unknown
from eagle_aot.runtime_runner.decode.stats import Stats

STEPS = 4


def score(nats: Tensor) -> Score:
    """`nats` [A, K]; every first draft is right and no token common."""
    anchors = len(nats)
    yes = torch.ones(nats.shape, dtype=torch.bool)
    rounds = RoundCounts(1, 1, (1, 1, 1, 1), (1, 1, 1, 1))
    return Score(yes, nats.float(), yes, torch.arange(anchors), rounds)


@given(
    hits=st.lists(st.lists(st.booleans(), min_size=STEPS, max_size=STEPS), min_size=1, max_size=30)
)
def test_rounds_are_counted_as_the_runner_counts_them(hits: list[list[bool]]) -> None:
    new_tokens, known = len(hits) + 1, 1
    stats = Stats(chain_len=STEPS)
    while known < new_tokens:
        leading = (hits[known - 1] + [False]).index(False)
        run = min(leading + 1, new_tokens - known)
        stats.add_round(STEPS, min(leading, run), run)
        known += run
    rounds = replay(torch.tensor(hits), new_tokens)
    assert (rounds.rounds, rounds.emitted) == (stats.rounds, stats.emitted)
    reached = [count for count in rounds.reached if count]
    assert reached == stats.reached
    assert list(rounds.accepted)[: len(reached)] == stats.accepted_at
    assert rounds.acceptance_by_position == stats.acceptance_by_position


def test_a_gain_is_paired_by_anchor() -> None:
    """Tokens differ by a thousand times, the readings by a tenth."""
    generator = torch.Generator().manual_seed(0)
    nats = 10 ** (3 * torch.rand(200, STEPS, generator=generator) - 2)
    noise = 1 + 0.05 * torch.randn(200, STEPS, generator=generator)
    chosen, other = score(nats), score(0.9 * nats * noise)
    assert is_better(chosen, other) and not is_better(other, chosen)
    assert log_gain(chosen, other).value == pytest.approx(0.1, abs=0.02)
    assert log_gain(chosen, other).error < 0.01


@pytest.mark.parametrize("seed", range(20))
def test_chance_is_no_gain(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    one, other = (score(torch.rand(200, STEPS, generator=generator)) for _ in range(2))
    assert not is_better(one, other) and not is_better(other, one)


def test_neither_a_sliver_nor_a_loss_in_plain_nats_is_better() -> None:
    nats = torch.ones(200, STEPS)
    assert not is_better(score(nats), score(0.97 * nats))
    mixed = torch.where(torch.arange(200)[:, None] % 8 == 0, 9.0, 0.5).expand(200, STEPS)
    assert log_gain(score(nats), score(mixed)).is_clear
    assert not is_better(score(nats), score(mixed))


def test_drafts_past_the_text_do_not_count() -> None:
    nats = torch.ones(64, STEPS)
    whole, worse = score(nats), score(torch.cat((nats[:, :2], 9 * nats[:, 2:]), dim=1))
    labelled = (torch.arange(STEPS) < 2).expand(64, STEPS)
    short, cut = replace(whole, labelled=labelled), replace(worse, labelled=labelled)
    assert log_gain(short, cut).value == 0 and cut.mean_nats == 1
    assert log_gain(whole, worse).value < 0


def test_standard_errors_are_estimated_from_blocks() -> None:
    """Eight neighbours that say the same are one sample."""
    values = torch.randn(25, generator=torch.Generator().manual_seed(0)).repeat_interleave(BLOCK)
    assert Mean.of(values).error == pytest.approx(float(values[::BLOCK].std()) / 5, rel=1e-4)
    enough = score(torch.ones(192, STEPS))
    assert enough.is_enough and not score(torch.ones(191, STEPS)).is_enough


def test_chance_exceeds_three_standard_errors_once_in_310() -> None:
    """Once in 310 at the fewest positions: 20,000 samples have 65 (8) of them."""
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(20_000, FEWEST_BLOCKS, generator=generator).double()
    errors = samples.std(dim=1) / FEWEST_BLOCKS**0.5
    assert 40 < int((samples.mean(dim=1) > STANDARD_ERRORS * errors).sum()) < 90
    values = samples[0].repeat_interleave(BLOCK)
    assert Mean.of(values).error == pytest.approx(float(errors[0]))


def entry(name: str, reached: tuple[int, ...], accepted: tuple[int, ...]) -> Entry:
    """Return the entry of a reading whose nats are all 1."""
    ids, yes = torch.arange(16), torch.ones(16, 4, dtype=torch.bool)
    score = Score(yes, yes.float(), yes, ids, RoundCounts(10, 20, reached, accepted))
    return Entry(reading=Reading(name=name, target_ids=ids), score=score)


def test_drafts_that_were_not_reached_have_their_column() -> None:
    chosen = entry("as resolved", (10, 8, 6, 2), (8, 6, 2, 1))
    other = entry("halves swapped", (10, 1, 0, 0), (1, 0, 0, 0))
    output = StringIO()
    verdict = Verdict(kind="fits", message="", entries=(chosen, other), chosen=chosen)
    Console(file=output, width=80).print(verdict.table(chosen))
    _, first, second = output.getvalue().splitlines()
    assert first.split()[-4:] == ["0.80", "0.75", "0.33", "0.50"]
    assert second.split()[-4:] == ["0.10", "0.00", "-", "-"]
    assert first.index("0.80") == second.index("0.10")


def test_a_file_that_is_quoted_cannot_write_to_a_terminal() -> None:
    output = StringIO()
    unknown("a\x1b]0;owned\x07\x1b[2Jb").announce(Console(file=output, width=80))
    assert output.getvalue().endswith("reads the target: a\ufffd]0;owned\ufffd\ufffd[2Jb\n")
