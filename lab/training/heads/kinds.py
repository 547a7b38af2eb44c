"""The kinds of heads that are trained, and what each supplies."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from eagle_aot.artifact import DFLASH2, EAGLE3, P_EAGLE
from eagle_aot.lab.training.heads import dflash2, eagle3
from eagle_aot.lab.training.heads.corpus import Batch, Corpus
from eagle_aot.lab.training.heads.draft import HeadDraft
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint

if TYPE_CHECKING:
    from eagle_aot.lab.training.heads.run import Run


class HeadTraining(Protocol):
    """An entry of `KINDS`: a Python module, which takes heads of its kinds only."""

    def fresh(self, run: "Run", corpus: Corpus) -> HeadDraft:
        """Return a head of the run's kind and sizes, on its device, to be trained on `corpus`."""

    def loss(
        self, draft: HeadDraft, target: FrozenTarget, compiled: bool
    ) -> Callable[[Batch], Tensor]:
        """Return the loss of a batch, a scalar; with `compiled`, fuse what surrounds products."""

    def choices(
        self, draft: HeadDraft, target: FrozenTarget, batch: Batch, chain_lens: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return what a head drafts in chains of each length at every place of B texts of T tokens.

        They are int64 [K, B, T], K at most the length. Entry [k, b, p] is the draft of the token at
        p + k + 2 after the text's own tokens before it.
        """

    def tensors(self, draft: HeadDraft) -> dict[str, Tensor]:
        """Return what a file of the head holds, by the names in it."""

    def config(self, draft: HeadDraft, max_position_embeddings: int) -> dict[str, Any]:
        """Return what is the kind's own in a config of speculators' layout."""

    def read(self, checkpoint: Checkpoint, target: TapTarget) -> HeadDraft:
        """Load a head that was written here, in float32, on the host."""

    def geometry(self, draft: HeadDraft) -> dict[str, Any]:
        """Return the sizes that a training's record has."""


KINDS: dict[str, HeadTraining] = {EAGLE3: eagle3, P_EAGLE: eagle3, DFLASH2: dflash2}


def kind_of(draft: HeadDraft) -> HeadTraining:
    return KINDS[draft.kind]
