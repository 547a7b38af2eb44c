"""Rounds with a DFlash head: what z-lab's own code would have drafted, from the text alone."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from eagle_aot.artifact import Constants
from eagle_aot.runtime_runner.decode.acceptance import Accepted, committed
from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.decode.round import BatchState, Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.drafters.dflash import DFlashDrafter
from eagle_aot.runtime_runner.engine.request import Limits
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.golden_cases import golden_case
from support.heads.dflash import SEQ_LEN, dflash_pair
from support.runner.eager_executor import EagerExecutor
from support.runner.one_text import decode

_, CASE = golden_case("dflash/qwen3_full")
PROMPT, TEXT = CASE["input.tokens"].tolist(), CASE["expected.text"].tolist()
BLOCK, SAID = 6, "dflash_block"
TREES = [Shape(3, 3, 9), Shape(5, 4, 16), Shape.of_paths(((0,), (1,), (0, 0), (1, 2), (0, 0, 1)))]


class Watched(DFlashDrafter):
    """Keeps what was drafted, and what was accepted."""

    def __init__(self, executor: EagerExecutor, constants: Constants) -> None:
        super().__init__(executor, constants, None, BLOCK)
        self.drafts: list[Draft] = []
        self.accepted: list[int] = []

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        self.drafts.append(super().propose(running, shape))
        return self.drafts[-1]

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        super().observe(accepted, features)
        if self.drafts:
            self.accepted.append(int(accepted.count))


def opened() -> tuple[EagerExecutor, Constants]:
    pair, target, draft = dflash_pair()
    constants = Constants(
        max_seq_len=SEQ_LEN, vocab_size=target.vocab_size, n_layers=target.num_hidden_layers,
        min_prefill_chunk=65, max_prefill_chunk=96, sliding_window=0, chain_len=5, max_rows=64,
        max_batch_size=1, tail=16, flat_slots=SEQ_LEN + 96, draft_vocab_size=target.vocab_size,
        hidden_size=draft.hidden_size, eos_ids=(),
    )  # fmt: skip
    return EagerExecutor(pair), constants


def decoded(
    executor: EagerExecutor, constants: Constants, shape: Shape, room: int
) -> tuple[list[int], Watched]:
    drafter = Watched(executor, constants)
    running = BatchState([0], constants.tail, "cpu")
    round_ = Round(TargetMethods(executor, constants), drafter, shape, running)
    output, _ = decode(round_, PROMPT, Limits(max_new_tokens=room, stop_ids=frozenset()))
    return output, drafter


def test_every_round_is_the_reference_implementations() -> None:
    executor, constants = opened()
    output, drafter = decoded(executor, constants, Shape.chain(5), len(TEXT) - len(PROMPT))
    assert output == TEXT[len(PROMPT) :]
    drafts = [draft.tokens[0].tolist() for draft in drafter.drafts]
    assert drafts == CASE["expected.round_drafts"].tolist()
    assert drafter.accepted == CASE["expected.round_accepted"].tolist()
    assert executor.calls[SAID] == len(drafts)


@pytest.mark.parametrize("shape", TREES, ids=str)
def test_a_tree_has_what_is_likeliest_at_each_place(shape: Shape) -> None:
    """Behind every node of a depth the same, whatever was accepted before and where it lay."""
    executor, constants = opened()
    output, drafter = decoded(executor, constants, shape, 30)
    assert output == TEXT[len(PROMPT) : len(PROMPT) + 30] and max(drafter.accepted) > 1
    lengths = itertools.accumulate(drafter.accepted, lambda n, a: n + a + 1, initial=len(PROMPT))
    for length, draft in zip(lengths, drafter.drafts, strict=False):
        likeliest = block_behind(executor, constants, length)[0].topk(shape.topk).indices
        assert draft.parents is not None and draft.ranks is not None
        depth = [0]
        for parent in draft.parents[0].tolist():
            depth.append(depth[parent] + 1)
        found = zip(draft.tokens[0].tolist(), draft.ranks[0].tolist(), depth[1:], strict=True)
        assert all(int(likeliest[d - 1, rank]) == token for token, rank, d in found)
        assert draft.scores is None or draft.scores.isfinite().all()


def block_behind(executor: EagerExecutor, constants: Constants, length: int) -> Tensor:
    """Logits of a block behind so many tokens of the text that were read as a prompt, [1, 5, V]."""
    drafter, first = Watched(executor, constants), torch.zeros(1, dtype=torch.int64)
    prefilled(TargetMethods(executor, constants), drafter, TEXT[:length])
    bonus = torch.tensor([[TEXT[length]]])
    return drafter._block(bonus, torch.tensor([length]), first, BLOCK - 1)


def prefilled(target: TargetMethods, drafter: Watched, text: Sequence[int]) -> None:
    run = Prefill(target, drafter, text, torch.zeros(1, dtype=torch.int64))
    while run.left:
        run.run_chunk()


def test_it_catches_up_a_block_at_a_time() -> None:
    executor, constants = opened()
    start, count = len(PROMPT), 24
    target, first = TargetMethods(executor, constants), torch.zeros(1, dtype=torch.int64)
    seen = Features(executor, constants)
    prefilled(target, seen, TEXT[: start + count])
    drafter = Watched(executor, constants)
    prefilled(target, drafter, TEXT[:start])
    following = torch.tensor([TEXT[start + 1 : start + count + 1]])
    path = committed(following, torch.arange(start, start + count), first)
    missed = torch.cat(seen.features, dim=1)[:, start:]
    right = drafter.catch_up(path, missed, Sampler(1, "cpu"))
    here = drafter._block(following[:, -1:], torch.tensor([start + count]), first, BLOCK - 1)
    assert (here - block_behind(executor, constants, start + count)).abs().max() < 1e-4
    blocks = (
        block_behind(executor, constants, length)[0].argmax(-1).tolist()
        for length in range(start, start + count, BLOCK - 1)
    )
    guesses = itertools.chain.from_iterable(blocks)
    wanted = [g == token for g, token in zip(guesses, following[0].tolist(), strict=False)]
    assert right[0].tolist() == wanted and any(wanted) and not all(wanted)


class Features(Watched):
    """Keeps the features of a prompt."""

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        self.features = [*getattr(self, "features", []), features]
        super().observe(accepted, features)
