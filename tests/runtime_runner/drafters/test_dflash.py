"""Rounds with a DFlash head, against what z-lab's own code drafts from the text alone."""

import itertools

import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import committed
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.golden_cases import golden_case
from support.heads.dflash import dflash_pair
from support.runner.eager_executor import EagerExecutor, prefilled
from support.runner.logging_drafter import LoggingDFlash
from support.runner.watched import rounds_of

_, CASE = golden_case("dflash/qwen3_full")
PROMPT, TEXT = CASE["input.tokens"].tolist(), CASE["expected.text"].tolist()
BLOCK = 6
TREES = [Shape(3, 3, 9), Shape(5, 4, 16), Shape.of_paths(((0,), (1,), (0, 0), (1, 2), (0, 0, 1)))]


class LoggingDrafter(LoggingDFlash):
    """Drafts blocks of the case's size."""

    def __init__(self, executor: EagerExecutor) -> None:
        super().__init__(executor, executor.artifact, None, BLOCK)


@pytest.fixture
def executor() -> EagerExecutor:
    return EagerExecutor(dflash_pair()[0], chain_len=5)


def decoded(executor: EagerExecutor, shape: Shape, length: int) -> tuple[list[int], LoggingDrafter]:
    drafter = LoggingDrafter(executor)
    output, _, _ = rounds_of(executor, drafter, shape, PROMPT, length)
    return output, drafter


def test_every_round_is_the_reference_implementations(executor: EagerExecutor) -> None:
    output, drafter = decoded(executor, Shape.chain(5), len(TEXT) - len(PROMPT))
    assert output == TEXT[len(PROMPT) :]
    drafts = [draft.tokens[0].tolist() for draft in drafter.drafts]
    assert drafts == CASE["expected.round_drafts"].tolist()
    assert drafter.accepted == CASE["expected.round_accepted"].tolist()
    assert executor.calls["dflash_block"] == len(drafts)


@pytest.mark.parametrize("shape", TREES, ids=str)
def test_a_tree_has_the_likeliest_tokens_of_each_depth(
    shape: Shape, executor: EagerExecutor
) -> None:
    """The same after every node of a depth, whatever was accepted before and where it lay."""
    output, drafter = decoded(executor, shape, 30)
    assert output == TEXT[len(PROMPT) : len(PROMPT) + 30] and max(drafter.accepted) > 1
    lengths = itertools.accumulate(drafter.accepted, lambda n, a: n + a + 1, initial=len(PROMPT))
    for length, draft in zip(lengths, drafter.drafts, strict=False):
        likeliest = block_after(executor, length)[0].topk(shape.topk).indices
        assert draft.parents is not None and draft.ranks is not None
        depth = [0]
        for parent in draft.parents[0].tolist():
            depth.append(depth[parent] + 1)
        found = zip(draft.tokens[0].tolist(), draft.ranks[0].tolist(), depth[1:], strict=True)
        assert all(int(likeliest[d - 1, rank]) == token for token, rank, d in found)
        assert draft.scores is None or draft.scores.isfinite().all()


def block_after(executor: EagerExecutor, length: int) -> Tensor:
    """Return the logits of a block after a prompt of so many tokens of the text, [1, 5, V]."""
    drafter, first = LoggingDrafter(executor), torch.zeros(1, dtype=torch.int64)
    prefilled(executor, drafter, TEXT[:length])
    bonus = torch.tensor([[TEXT[length]]])
    return drafter._block(bonus, torch.tensor([length]), first, BLOCK - 1)[0]


def test_the_head_catches_up_a_block_at_a_time(executor: EagerExecutor) -> None:
    start, count = len(PROMPT), 24
    first, seen = torch.zeros(1, dtype=torch.int64), LoggingDrafter(executor)
    prefilled(executor, seen, TEXT[: start + count])
    drafter = LoggingDrafter(executor)
    prefilled(executor, drafter, TEXT[:start])
    following = torch.tensor([TEXT[start + 1 : start + count + 1]])
    path = committed(following, torch.arange(start, start + count), first)
    missed = torch.cat(seen.features, dim=1)[:, start:]
    right = drafter.catch_up(path, missed, Sampler(1, "cpu"))
    here = drafter._block(following[:, -1:], torch.tensor([start + count]), first, BLOCK - 1)[0]
    assert (here - block_after(executor, start + count)).abs().max() < 1e-4
    blocks = (
        block_after(executor, length)[0].argmax(-1).tolist()
        for length in range(start, start + count, BLOCK - 1)
    )
    guesses = itertools.chain.from_iterable(blocks)
    expected = [g == token for g, token in zip(guesses, following[0].tolist(), strict=False)]
    assert right[0].tolist() == expected and any(expected) and not all(expected)
