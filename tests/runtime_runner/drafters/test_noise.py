"""Drafts are sampled with the noise that the target will have at their position, at every depth.

Where the head finds all tokens equally likely, its drafts are what the noise alone chooses.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from eagle_aot.artifact import DFLASH2_SCORES, DFLASH_BLOCK, DFLASH_CONTEXT, DSPARK_BIAS, NGRAM
from eagle_aot.runtime_runner.decode.acceptance import committed
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.drafters import KINDS
from eagle_aot.runtime_runner.drafters.dflash import DFlashDrafter
from eagle_aot.runtime_runner.drafters.dflash2 import DFlash2Drafter
from eagle_aot.runtime_runner.drafters.dspark import DSparkDrafter
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter, MtpDrafter, PEagleDrafter
from eagle_aot.runtime_runner.drafters.gemma4_assistant import AssistantDrafter
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler, noise_keys
from eagle_aot.triton_kernels.gumbel_argmax import gumbel_reference
from support.runner.logging_executor import CONSTANTS, HIDDEN, TAIL, VOCAB, LoggingExecutor

Drafter = Eagle3Drafter | PEagleDrafter | AssistantDrafter | DFlashDrafter
Make = Callable[..., Drafter]
DRAFTERS: dict[str, Make] = {
    Eagle3Drafter.kind: Eagle3Drafter,
    PEagleDrafter.kind: PEagleDrafter,
    MtpDrafter.kind: MtpDrafter,
    AssistantDrafter.kind: AssistantDrafter,
    DFlashDrafter.kind: partial(DFlashDrafter, block_size=6),
    DFlash2Drafter.kind: partial(DFlash2Drafter, block_size=6, top_k=4),
    DSparkDrafter.kind: partial(DSparkDrafter, block_size=6, first_draft=1),
}
POSITIONS, SEEDS, SEQUENCES = [40, 23], [7, 8], [1, 0]
SUBSET = torch.arange(3, VOCAB, 2)
SHAPES = [
    Shape.chain(1),
    Shape.chain(5),
    Shape(4, 3, 30),  # all that it grows
    Shape(3, 2, 5, ((0,), (1,), (0, 1), (1, 0), (1, 0, 1))),
]


class Uniform(LoggingExecutor):
    """Finds all tokens of the head's vocabulary equally likely."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab = vocab

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        if method == DFLASH_CONTEXT:
            return ()
        if method == DFLASH2_SCORES:  # no candidate is likelier after another
            ids = inputs[0]
            return (torch.zeros(*ids.shape, ids.shape[2]),)
        logits = torch.zeros(*inputs[0].shape, self.vocab)
        alone = DFLASH_BLOCK, DSPARK_BIAS  # no token is likelier after another
        return (logits,) if method in alone else (logits, torch.zeros_like(inputs[-1]))


def test_each_kind_that_samples_is_tested() -> None:
    assert {*DRAFTERS, NGRAM} == set(KINDS), "prompt lookup alone copies what stands in the text"


def opened(make: Make, target_ids: Tensor | None) -> tuple[Drafter, BatchState]:
    """Return a drafter and two sequences that sample, whose texts it has observed."""
    constants = replace(CONSTANTS, max_batch_size=2)
    drafter = make(Uniform(VOCAB if target_ids is None else len(target_ids)), constants, target_ids)
    batch = BatchState(SEQUENCES, TAIL, "cpu", Sampler(2, "cpu", length=100, vocab=VOCAB))
    for index, (position, seed, sequence) in enumerate(
        zip(POSITIONS, SEEDS, SEQUENCES, strict=True)
    ):
        batch.sampler.begin(sequence, SamplingParams(temperature=0.7, seed=seed), [1] * 10)
        tokens = torch.ones(1, position, dtype=torch.int64)
        accepted = committed(tokens, torch.arange(position), torch.tensor([sequence]))
        drafter.observe(accepted, torch.zeros(1, position, HIDDEN))
        batch.place(torch.tensor([[1]]), position, index)
    return drafter, batch


def by_noise(seed: int, position: int, target_ids: Tensor | None) -> list[int]:
    """Return the target's ids, those with the largest noise at a position first."""
    ids = torch.arange(VOCAB) if target_ids is None else target_ids
    ((low, high),) = noise_keys(seed, position, position + 1).tolist()
    order = gumbel_reference(ids.int(), (low, high)).argsort(descending=True)
    return [int(token) for token in ids[order]]


@pytest.mark.parametrize("target_ids", [None, SUBSET], ids=["all ids", "a subset"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
@pytest.mark.parametrize("kind", DRAFTERS)
def test_drafts_have_the_targets_noise_at_every_depth(
    kind: str, shape: Shape, target_ids: Tensor | None
) -> None:
    if kind == DFlash2Drafter.kind:
        target_ids = None  # no such head has a reduced vocabulary
    drafter, batch = opened(DRAFTERS[kind], target_ids)
    draft = drafter.propose(batch, shape)
    for index, (position, seed) in enumerate(zip(POSITIONS, SEEDS, strict=True)):
        depths, tokens = [0], draft.tokens[index].tolist()
        for node, token in enumerate(tokens):
            parent = node if draft.parents is None else int(draft.parents[index, node])
            rank = 0 if draft.ranks is None else int(draft.ranks[index, node])
            depths.append(depths[parent] + 1)
            assert token == by_noise(seed, position + depths[-1], target_ids)[rank]
        assert max(depths) == shape.depth


@pytest.mark.parametrize("kind", DRAFTERS)
def test_skipped_tokens_are_compared_with_drafts_of_the_same_noise(kind: str) -> None:
    """Of a chain that begins before each of them, or before the first of a block."""
    drafter, batch = opened(DRAFTERS[kind], None)
    position, seed, sequence = POSITIONS[0], SEEDS[0], SEQUENCES[0]
    tokens = [by_noise(seed, position + 1 + i, None)[0] for i in range(9)]
    tokens[3] += 1
    rows = torch.arange(position, position + len(tokens))
    accepted = committed(torch.tensor([tokens]), rows, torch.tensor([sequence]))
    drafted = drafter.catch_up(accepted, torch.zeros(1, len(tokens), HIDDEN), batch.sampler)
    assert drafted.tolist() == [[i != 3 for i in range(9)]]
