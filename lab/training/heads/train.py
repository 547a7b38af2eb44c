"""A head's training, from a fresh head and a corpus to a trained one."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.lab.training.heads.chains import TTT_STEPS, ChainLoss, read_labels
from eagle_aot.lab.training.heads.corpus import Batch, Corpus
from eagle_aot.lab.training.heads.frozen_target import UNLIKE_ANY, FrozenTarget
from eagle_aot.lab.training.heads.learned_mask import LearnedMask, thinned_anchors
from eagle_aot.lab.training.loop import Budget, StateFile, TrainingProgress, autocast, train


def train_head(
    draft: Eagle3Draft,
    target: FrozenTarget,
    corpus: Corpus,
    budget: Budget,
    seed: int,
    *,
    compiled: bool = False,
    state_file: StateFile | None = None,
    on_report: Callable[[], str] = lambda: "",
) -> TrainingProgress:
    """Train `draft` in place on the frozen target's own distribution and hidden states.

    `compiled` fuses what surrounds matrix products, of the target too.
    """
    if compiled:
        target.compile()
    chain_loss = ChainLoss(draft, compiled)

    def loss_of(batch: Batch) -> tuple[Tensor, int]:
        taps, labels = read_labels(target, draft, batch)
        with autocast(target.device):
            loss = chain_loss(batch.tokens, taps, labels, thinned(draft, batch))
        return loss, batch.tokens.numel()

    if compiled:
        _compile(draft, loss_of, target)
    batches = partial(corpus.batches, budget.tokens, seed)
    return train(
        draft, "head", budget, batches, loss_of, on_report=on_report, state_file=state_file
    )


def thinned(draft: Eagle3Draft, batch: Batch) -> list[Tensor] | None:
    """Return the anchors of each step of a head with a mask, other ones for every batch."""
    if not isinstance(draft, LearnedMask):
        return None
    return thinned_anchors(batch.tokens.shape[1], TTT_STEPS, batch.number, batch.tokens.device)


def _compile(
    draft: Eagle3Draft, loss_of: Callable[[Batch], tuple[Tensor, int]], target: FrozenTarget
) -> None:
    """Compile by running a batch of zeros forward and back, without changing the head."""
    tokens = torch.zeros(UNLIKE_ANY, dtype=torch.int64, device=target.device)
    every = torch.ones_like(tokens, dtype=torch.bool)
    loss, _ = loss_of(Batch(tokens, every, every))
    loss.backward()
    draft.zero_grad(set_to_none=True)
