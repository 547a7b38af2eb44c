"""Rounds with a DFlash2 head, against what z-lab's and speculators' own code draft."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import committed
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.drafters.dflash2 import DFlash2Drafter, Lattice, likeliest
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.golden_cases import golden_case
from support.heads.dflash2 import SPECULATORS, Z_LAB, dflash2_pair
from support.runner.eager_executor import EagerExecutor, prefilled
from support.runner.logging_drafter import LoggingDFlash
from support.runner.watched import rounds_of

BLOCK, TOP_K, DRAFTS = 8, 4, 7
FIRST = torch.zeros(1, dtype=torch.int64)
TREES = [
    Shape(3, 3, 9),
    Shape(7, 4, 16),
    Shape(4, 6, 20),  # more children than the head has candidates
    Shape.of_paths(((0,), (1,), (0, 0), (1, 2), (0, 0, 1))),
]


class LoggingDrafter(LoggingDFlash, DFlash2Drafter):
    """Drafts blocks of the cases' size."""

    def __init__(self, executor: EagerExecutor) -> None:
        super().__init__(executor, executor.artifact, None, BLOCK, TOP_K)


def executor_of(case: str) -> EagerExecutor:
    return EagerExecutor(dflash2_pair(case)[0], chain_len=DRAFTS)


def texts(case: str) -> tuple[list[int], list[int], dict[str, Tensor]]:
    """The prompt of a case, its whole text, and its tensors."""
    _, numbers = golden_case(f"dflash2/{case}")
    return numbers["input.tokens"].tolist(), numbers["expected.text"].tolist(), numbers


@pytest.mark.parametrize("case", [Z_LAB, SPECULATORS])
def test_every_round_is_the_reference_implementations(case: str) -> None:
    prompt, text, numbers = texts(case)
    executor = executor_of(case)
    drafter = LoggingDrafter(executor)
    output, _, _ = rounds_of(
        executor, drafter, Shape.chain(DRAFTS), prompt, len(text) - len(prompt)
    )
    assert output == text[len(prompt) :]
    drafts = [draft.tokens[0].tolist() for draft in drafter.drafts]
    assert drafts == numbers["expected.round_drafts"].tolist()
    assert drafter.accepted == numbers["expected.round_accepted"].tolist()
    assert executor.calls["dflash2_block"] == executor.calls["dflash2_scores"] == len(drafts)


def pair_scores(executor: EagerExecutor, text: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for a block after a text whose last token is the bonus, its logits float64 [7, V],
    and the tables of the selector float64 [7, V, r] and [V, r]: logits[i, c] + A[i, p] B[c] is
    the score of c after p."""
    drafter, bonus = LoggingDrafter(executor), torch.tensor([text[-1:]])
    prefilled(executor, drafter, text[:-1])
    logits, projected = drafter._block(bonus, torch.tensor([len(text) - 1]), FIRST, DRAFTS)
    head = dflash2_pair(Z_LAB)[2].candidate_selector
    before = head.predecessor_codebook.weight.double() * projected[0].double().unsqueeze(1)
    return logits[0].double(), before, head.successor_codebook.weight.double()


@pytest.mark.parametrize("shape", TREES, ids=str)
def test_a_tree_has_the_likeliest_paths_through_candidates(shape: Shape) -> None:
    """Every node's path has the log probability of a softmax over the candidates after its parent,
    and its rank, whatever was accepted before."""
    prompt, text, _ = texts(Z_LAB)
    executor = executor_of(Z_LAB)
    drafter = LoggingDrafter(executor)
    output, _, _ = rounds_of(executor, drafter, shape, prompt, 24)
    assert output == text[len(prompt) : len(prompt) + 24]
    lengths = itertools.accumulate(drafter.accepted, lambda n, a: n + a + 1, initial=len(prompt))
    for length, draft in list(zip(lengths, drafter.drafts, strict=False))[:6]:
        assert draft.parents is not None and draft.ranks is not None and draft.scores is not None
        scores = pair_scores(executor, text[: length + 1])
        paths: list[tuple[int, ...]] = [(text[length],)]
        sums = [0.0]
        for token, parent, rank in zip(
            draft.tokens[0].tolist(),
            draft.parents[0].tolist(),
            draft.ranks[0].tolist(),
            strict=True,
        ):
            order = after(*scores, paths[parent], max(TOP_K, shape.topk))
            assert order[rank][1] == token
            paths.append((*paths[parent], token))
            sums.append(sums[parent] + order[rank][0])
        assert draft.scores[0].tolist() == pytest.approx(sums[1:], abs=1e-4)


def after(
    logits: Tensor, before: Tensor, codes: Tensor, path: tuple[int, ...], count: int
) -> list[tuple[float, int]]:
    """Return the log probability and the id of each candidate after a path, likeliest first."""
    place = len(path) - 1
    ids = logits[place].topk(count).indices
    scores = logits[place, ids] + codes[ids] @ before[place, path[-1]]
    total = math.log(scores.exp().sum())
    return sorted(((float(s) - total, int(c)) for s, c in zip(scores, ids, strict=True)))[::-1]


def test_the_head_catches_up_along_the_text() -> None:
    """Each token is compared with the best candidate after the right one before it."""
    prompt, text, _ = texts(Z_LAB)
    executor, start, count = executor_of(Z_LAB), len(prompt), 24
    seen, drafter = LoggingDrafter(executor), LoggingDrafter(executor)
    prefilled(executor, seen, text[: start + count])
    prefilled(executor, drafter, text[:start])
    following = torch.tensor([text[start + 1 : start + count + 1]])
    path = committed(following, torch.arange(start, start + count), FIRST)
    missed = torch.cat(seen.features, dim=1)[:, start:]
    right = drafter.catch_up(path, missed, Sampler(1, "cpu"))
    expected = []
    for first in range(start, start + count, DRAFTS):
        scores = pair_scores(executor, text[: first + 1])
        for place in range(min(DRAFTS, start + count - first)):
            walked = tuple(text[first : first + place + 1])
            expected.append(after(*scores, walked, TOP_K)[0][1] == text[first + place + 1])
    assert right[0].tolist() == expected and any(expected) and not all(expected)


def test_equal_scores_and_logits_take_the_lower_id() -> None:
    logits = torch.zeros(1, 2, 40)
    logits[0, 0, 30] = 1.0
    assert likeliest(logits, 3).tolist() == [[[0, 1, 30], [0, 1, 2]]]
    lattice = Lattice(torch.tensor([[[2, 5], [1, 9]]]), torch.zeros(1, 2, 2, 2))
    assert lattice.walk().tolist() == [[2, 1]]
    assert lattice.after(1, torch.tensor([[5, 2]]), 2).tokens.tolist() == [[[1, 9], [1, 9]]]
