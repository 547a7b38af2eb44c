"""A head's training, from a fresh head and a corpus to a trained one."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from head_training.chains import ChainLoss, read_labels
from head_training.corpus import Batch, Corpus
from head_training.frozen_target import FrozenTarget
from shared.training import Budget, StateFile, TrainingProgress, autocast, train


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
    """Trains `draft` in place on the frozen target's own distribution and hidden states.

    `compiled` fuses what surrounds matrix products, of the target too.
    """
    if compiled:
        target.compile()
    chain_loss = ChainLoss(draft, compiled)

    def loss_of(batch: Batch) -> tuple[Tensor, int]:
        taps, labels = read_labels(target, draft, batch)
        with autocast(target.device):
            loss = chain_loss(batch.tokens, taps, labels)
        return loss, batch.tokens.numel()

    batches = partial(corpus.batches, budget.tokens, seed)
    return train(
        draft, "head", budget, batches, loss_of, on_report=on_report, state_file=state_file
    )
