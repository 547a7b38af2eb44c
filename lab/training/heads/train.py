"""A head's training, from a fresh head and a corpus to a trained one."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from eagle_aot.lab.training.heads.corpus import Batch, Corpus
from eagle_aot.lab.training.heads.draft import HeadDraft
from eagle_aot.lab.training.heads.frozen_target import UNLIKE_ANY, FrozenTarget
from eagle_aot.lab.training.heads.kinds import kind_of
from eagle_aot.lab.training.loop import Budget, StateFile, TrainingProgress, train


def train_head(
    draft: HeadDraft,
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
    loss = kind_of(draft).loss(draft, target, compiled)

    def loss_of(batch: Batch) -> tuple[Tensor, int]:
        return loss(batch), batch.tokens.numel()

    if compiled:
        _compile(draft, loss_of, target)
    batches = partial(corpus.batches, budget.tokens, seed)
    return train(
        draft, "head", budget, batches, loss_of, on_report=on_report, state_file=state_file
    )


def _compile(
    draft: HeadDraft, loss_of: Callable[[Batch], tuple[Tensor, int]], target: FrozenTarget
) -> None:
    """Compile by running a batch of zeros forward and back, without changing the head."""
    tokens = torch.zeros(UNLIKE_ANY, dtype=torch.int64, device=target.device)
    every = torch.ones_like(tokens, dtype=torch.bool)
    loss, _ = loss_of(Batch(tokens, every, every))
    loss.backward()
    draft.zero_grad(set_to_none=True)
