"""Rows that texts share: which drafts get them, and that no text depends on it."""

import itertools

import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import PLAIN, Shape
from eagle_aot.runtime_runner.decode.shared_rows import Lines, SharedRows, share_rows
from eagle_aot.runtime_runner.decode.step import Draft, DraftLimits, StepRows
from eagle_aot.runtime_runner.decode.target import Forward, TargetMethods, no_moves
from eagle_aot.runtime_runner.drafters.dspark import DSparkDrafter
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.warm_up import warm_up
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.golden_cases import golden_case
from support.heads.dspark import DEEPSPEC, dspark_pair
from support.runner.eager_executor import EagerExecutor, prefilled

DEPTH, TAIL = 7, 16


class Counting(TargetMethods):
    """Has the number of `rows` of the last step."""

    rows = 0

    def verify(self, rows: StepRows, moves: Tensor, *, largest_only: bool = False) -> Forward:
        self.rows = rows.tokens.numel()
        return super().verify(rows, moves)


def shared(lines: Lines, survival: Tensor, limits: list[int], position: list[int]) -> SharedRows:
    """Share the rows of chains whose drafts are numbered, 100 for each text."""
    batch = len(survival)
    tokens = 100 * torch.arange(batch).unsqueeze(1) + torch.arange(DEPTH + 1)
    sequences = torch.arange(batch).flip(0) + 3
    depth = torch.tensor(limits)
    draft = Draft(tokens[:, 1:], survival=survival)
    first = torch.tensor(position)
    moves = no_moves(batch, TAIL, "cpu")
    moves[:, -1] = 5
    return share_rows(
        lines, tokens[:, :1], first, sequences, draft, moves, DraftLimits(depth, depth)
    )


def best_sum(lines: Lines, gains: list[list[float]]) -> float:
    """The largest sum of gains [B, parts] of any way to give lines to chains from their start."""
    counts = itertools.product(*(range(1, len(parts) + 1) for parts in gains))
    return max(
        sum(sum(parts[:n]) for parts, n in zip(gains, taken, strict=True))
        for taken in counts
        if sum(taken) <= lines.count
    )


@pytest.mark.parametrize("lines", [Lines(6, 2, 7), Lines(9, 1, 7), Lines(5, 3, 7)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_rows_go_to_the_drafts_that_are_likeliest_to_be_accepted(lines: Lines, seed: int) -> None:
    survival = torch.rand(3, DEPTH, generator=torch.Generator().manual_seed(seed)).cumprod(1)
    limits, position = [7, 2, 15], [40, 9, 60]
    rows = shared(lines, survival, limits, position)
    assert rows.by_line.tokens.shape == (lines.count, lines.rows)
    verified = (rows.by_text.positions >= 0).sum(1).tolist()
    gains, width = [], lines.rows_of_a_text
    for text, limit in enumerate(limits):
        kept = [0.0, *survival[text, : min(limit, DEPTH)].tolist()]
        kept += [0.0] * (width - len(kept))
        starts = range(0, min(limit, DEPTH) + 1, lines.rows)
        gains.append([sum(kept[i : i + lines.rows]) for i in starts])
        assert 1 <= verified[text] <= min(limit, DEPTH) + 1
        row = rows.by_text.positions[text].tolist()
        expected = [position[text] + i for i in range(verified[text])]
        assert row == expected + [-1] * (width - verified[text]), "from the chain's start"
    total = sum(float(survival[text, : n - 1].sum()) for text, n in enumerate(verified))
    assert total == pytest.approx(best_sum(lines, gains))


def test_lines_are_those_of_their_texts_and_what_they_compute_returns_to_them() -> None:
    lines = Lines(6, 2, 7)
    survival = torch.tensor([[0.9] * 7, [0.1] * 7, [0.5] * 7]).cumprod(1)
    rows = shared(lines, survival, [7, 7, 7], [40, 9, 60])
    by_line = rows.by_line
    assert by_line.tokens.tolist() == [[0, 1], [100, 101], [200, 201], [2, 3], [4, 5], [6, 7]]
    assert by_line.positions.tolist() == [[40, 41], [9, 10], [60, 61], [42, 43], [44, 45], [46, 47]]
    assert by_line.sequences.tolist() == [5, 4, 3, 5, 5, 5]
    assert torch.equal(by_line.tail[..., -1], by_line.positions)
    assert rows.moves[:, -1].tolist() == [5, 5, 5, -1, -1, -1]
    forward = Forward(by_line.tokens.unsqueeze(2), by_line.positions.unsqueeze(2))
    tokens, positions = (x.squeeze(2) for x in rows.unpacked(forward))
    ran = rows.by_text.positions >= 0
    assert ran.sum(1).tolist() == [8, 2, 2]
    assert torch.equal(tokens[ran], rows.by_text.tokens[ran])
    assert torch.equal(positions[ran], rows.by_text.positions[ran])


def test_padding_and_equal_probabilities_leave_no_gap() -> None:
    """A text that does not run gets one line of padding; of equal gains the earlier parts win."""
    rows = shared(Lines(8, 2, 7), torch.ones(4, DEPTH), [7, 7, 7, 0], [40, -1, 60, 5])
    assert (rows.by_text.positions >= 0).sum(1).tolist() == [6, 0, 6, 1]
    damaged = torch.tensor([[1.0, 1.0, 0, 0, 0, 0, 0]] * 2)
    rows = shared(Lines(4, 2, 7), damaged, [7, 7], [40, 50])
    assert (rows.by_text.positions >= 0).sum(1).tolist() == [4, 4]


@pytest.mark.parametrize(
    ("batch", "length", "most", "lines"),
    [
        (16, 3, 32, Lines(32, 2, 7)),
        (4, 3, 8, Lines(8, 2, 7)),
        (4, 2, 64, Lines(6, 2, 7)),
        (3, 3, 4, Lines(4, 3, 7)),
        (8, 3, 8, None),  # no line is left
        (4, 1, 64, None),
        (1, 3, 64, None),
        (4, 7, 64, None),  # all drafts have rows already
        (4, 3, 0, None),
    ],
)
def test_lines_have_as_many_rows_as_the_chains(
    batch: int, length: int, most: int, lines: Lines | None
) -> None:
    assert Lines.sharing(batch, Shape.chain(length), most, 8) == lines
    assert Lines.sharing(batch, Shape(3, 2, 6), most, 8) is None


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SamplingParams(temperature=1.0, seed=5),
        SamplingParams(temperature=1.0, seed=5, top_k=9),
    ],
    ids=["greedy", "sampled", "processed"],
)
@torch.no_grad()
def test_texts_are_those_of_plain_rounds(sampling: SamplingParams) -> None:
    """Of three texts whose drafts are confident in different measure, in an artifact for eight."""
    _, numbers = golden_case(f"dspark/{DEEPSPEC}")
    text = numbers["expected.text"].tolist()
    prompts = [text[:40], text[:53], text[3:47]]
    found, verified = {}, set()
    for lines in (None, Lines.sharing(3, Shape.chain(3), 8, 7)):
        executor = EagerExecutor(dspark_pair(sequences=8)[0], chain_len=7)
        drafter = DSparkDrafter(executor, executor.artifact, None, 7, 0, is_confident=True)
        target = TargetMethods(executor, executor.artifact)
        sampler = Sampler(8, "cpu", 256, 320)
        batch = BatchState([1, 5, 2], TAIL, "cpu", sampler)
        outputs: list[list[int]] = []
        for index, prompt in enumerate(prompts):
            sequence = batch.sequences[index : index + 1]
            sampler.begin(int(sequence), sampling, prompt, 60)
            bonus = prefilled(executor, drafter, prompt, sequence, sampler)
            batch.place(bonus, len(prompt), index)
            outputs.append([int(bonus)])
        shape = Shape.chain(3 if lines else 0)
        round_ = Round(target, drafter if lines else None, shape, batch, lines)
        while min(map(len, outputs)) < 20:
            outcomes = round_.outcomes(round_.run())
            for output, outcome in zip(outputs, outcomes, strict=True):
                output += outcome.tokens[: outcome.accepted + 1]
            if lines:
                drafted = [outcome.drafted or 0 for outcome in outcomes]
                verified |= set(drafted)
                assert sum(drafted) + 3 <= lines.count * lines.rows
                assert all(len(outcome.survival) == 7 for outcome in outcomes)
        found[bool(lines)] = [output[:20] for output in outputs]
    assert found[True] == found[False]
    assert len(verified) > 2 and max(verified) > 3


@torch.no_grad()
def test_survival_is_that_of_the_reference_implementation() -> None:
    _, numbers = golden_case(f"dspark/{DEEPSPEC}")
    executor = EagerExecutor(dspark_pair()[0], chain_len=7)
    drafter = DSparkDrafter(executor, executor.artifact, None, 7, 0, is_confident=True)
    batch = BatchState([0], TAIL, "cpu")
    prompt = numbers["input.tokens"].tolist()
    batch.place(prefilled(executor, drafter, prompt), len(prompt))
    draft = drafter.propose(batch, Shape.chain(7))
    assert draft.survival is not None
    assert (draft.survival[0] - numbers["expected.survival"]).abs().max() < 1e-4


@torch.no_grad()
def test_rows_are_shared_where_chains_do_not_fit_and_where_they_are_chosen() -> None:
    """And a warm-up makes the rounds that requests need."""
    executor = EagerExecutor(dspark_pair(sequences=8)[0], chain_len=7)
    constants = executor.artifact
    batch = BatchState(range(8), TAIL, "cpu")
    target = TargetMethods(executor, constants)

    def rounds_of(target: TargetMethods, lines: int, is_confident: bool = True) -> Rounds:
        drafter = DSparkDrafter(
            *(executor, constants, None, 7, 0), is_confident=is_confident, max_lines=lines
        )
        return Rounds(target, drafter, batch, 24, 24, None)

    rounds = rounds_of(target, 8)
    three, seven, shared = Shape.chain(3), Shape.chain(7), Lines(8, 3, 7)
    assert rounds.get_round(6, seven).lines == shared
    assert rounds.get_round(6, three).lines is None, "the requests asked for no more"
    assert rounds.get_round(6, three, observed=True).lines == shared
    assert rounds.get_round(8, seven).lines is None, "no line is left"
    assert rounds.get_round(1, three, observed=True).lines is None
    assert rounds.get_round(6, Shape(3, 2, 6)).lines is None
    with_states = TargetMethods(executor, constants, has_states=True)
    for others in (rounds_of(target, 0), rounds_of(target, 8, False), rounds_of(with_states, 8)):
        assert others.get_round(6, seven).lines is None
    made = {id(rounds.get_round(6, seven)), id(rounds.get_round(6, three, observed=True))}
    warm_up(rounds, 6, [seven])
    warm_up(rounds, 6, [PLAIN, three], observed=True)
    again = rounds.get_round(6, seven), rounds.get_round(6, three, observed=True)
    assert {id(round_) for round_ in again} == made
    assert executor.calls["target_verify"] == 6 + 12


@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingParams(temperature=1.0, seed=5)], ids=["greedy", "sampled"]
)
@torch.no_grad()
def test_a_text_alone_verifies_the_drafts_that_are_likely(
    sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is that of plain rounds, and each step has a row for each draft of some survival."""
    monkeypatch.setattr("eagle_aot.runtime_runner.drafters.dspark.LEAST_SURVIVAL", 0.3)
    _, numbers = golden_case(f"dspark/{DEEPSPEC}")
    prompt, found = numbers["input.tokens"].tolist(), []
    for shape in (PLAIN, Shape.chain(7)):
        executor = EagerExecutor(dspark_pair()[0], chain_len=7)
        drafter = DSparkDrafter(executor, executor.artifact, None, 7, 0, is_confident=True)
        sampler = Sampler(1, "cpu", 256, 320)
        batch = BatchState([0], TAIL, "cpu", sampler)
        sampler.begin(0, sampling, prompt, 60)
        bonus = prefilled(executor, drafter, prompt, sampler=sampler)
        batch.place(bonus, len(prompt))
        target = Counting(executor, executor.artifact)
        round_ = Rounds(target, drafter, batch, 64, 64, None).get_round(1, shape)
        text, verified = [int(bonus)], []
        while len(text) < 40:
            likely = 0
            if shape.nodes:
                survival = drafter.propose(batch, shape).survival
                assert survival is not None and round_.cuts
                likely = max(int((survival[0] >= 0.3).sum()), 1)
            (outcome,) = round_.outcomes(round_.run())
            assert (outcome.drafted or 0) == likely >= outcome.accepted
            assert target.rows == likely + 1
            text += outcome.tokens[: outcome.accepted + 1]
            verified.append(likely)
        found.append(text[:40])
    assert found[0] == found[1]
    assert len(set(verified)) > 2 and max(verified) > 2
