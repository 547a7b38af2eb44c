"""EAGLE-3 heads and MTP layers, run by `draft_decode`, and P-EAGLE heads, run by `peagle_decode`,
which all have a KV cache.

A P-EAGLE head does not read its own drafts: the last committed slot predicted the first draft of a
round, and one forward over slots with masks gives all others.
"""

from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from eagle_aot.artifact import (
    DRAFT_DECODE,
    DRAFT_PREFILL,
    EAGLE3,
    MASK,
    MTP,
    P_EAGLE,
    PEAGLE_DECODE,
    Constants,
    Manifest,
)
from eagle_aot.runtime_runner.decode.acceptance import Accepted, committed
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.input_embeds import InputEmbeds
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, chain_rows
from eagle_aot.runtime_runner.decode.target import padded
from eagle_aot.runtime_runner.drafters.recurrent import RecurrentDrafter
from eagle_aot.runtime_runner.program.executor import Executor


class Eagle3Drafter(RecurrentDrafter):
    """Commits every slot of an accepted path, and of prompts."""

    kind = EAGLE3
    method = DRAFT_DECODE

    def __init__(
        self,
        executor: Executor,
        constants: Constants,
        target_ids: Tensor | None,
        stores_prompts: bool = False,
        reads_images: bool = False,
    ) -> None:
        """`stores_prompts` says that the artifact has `draft_prefill`, `reads_images` that this
        method takes rows of images."""
        super().__init__(executor, constants, target_ids)
        self._max_rows = constants.max_rows if stores_prompts else None
        self._reads_images = reads_images

    @classmethod
    def open(
        cls, executor: Executor, constants: Constants, target_ids: Tensor | None, manifest: Manifest
    ) -> Self:
        """Make the drafter of an opened artifact; `target_ids` int64 [Vd] are as in `__init__`."""
        reads_images = manifest.images is not None and manifest.images.drafter_reads_images
        stores_prompts = DRAFT_PREFILL in manifest.methods
        return cls(executor, constants, target_ids, stores_prompts, reads_images)

    def observe(self, accepted: Accepted, features: Tensor) -> None:
        """Commit the slots of an accepted path, or of a prompt's chunk; features [B, T, H]."""
        if self._max_rows is not None and features.shape[1] > self._max_rows:
            accepted, features = self._store(accepted, features, None)
        self._commit(accepted, features)

    def observe_images(self, accepted: Accepted, features: Tensor, images: InputEmbeds) -> None:
        """Commit a prompt's chunk with rows of images; features [1, T, H]."""
        if not self._reads_images:
            return self.observe(accepted, features)
        self._commit(*self._store(accepted, features, images))

    def _store(
        self, prompt: Accepted, features: Tensor, images: InputEmbeds | None
    ) -> tuple[Accepted, Tensor]:
        """Store the slots of a prompt's chunk with features [1, T, H].

        Returns its last slot and feature [1, 1, H], which `draft_decode` runs.
        """
        slots, padding = prompt.slots[0], 0
        if images is not None:
            padding = images.embeddings.shape[1] - features.shape[1]
        tokens, positions = padded(prompt.tokens, slots, padding)
        inputs = [tokens, positions, prompt.sequences, pad(features, (0, 0, 0, padding))]
        if self._reads_images:
            inputs += image_slots(inputs[-1], images)
        self.executor.run(DRAFT_PREFILL, *inputs)
        last = committed(prompt.tokens[:, -1:], slots[-1:], prompt.sequences)
        return last, features[:, -1:]


def image_slots(features: Tensor, images: InputEmbeds | None) -> tuple[Tensor, Tensor]:
    """Return what the slots of a chunk hold of images, for features [1, T, H].

    Slot j holds token j + 1, so the rows of images come one slot before their positions, and the
    last slot holds a token. Returns embeddings [1, T, H], and int64 [1, T], 1 where a slot holds a
    row of an image.
    """
    if images is None:
        return torch.zeros_like(features), features.new_zeros(features.shape[:2], dtype=torch.int64)
    is_image = (images.last_visible[1:] >= 0).long()
    return pad(images.embeddings[:, 1:], (0, 0, 0, 1)), pad(is_image, (0, 1)).unsqueeze(0)


class MtpDrafter(Eagle3Drafter):
    """A target's MTP layer, whose slots are those of an EAGLE-3 head."""

    kind = MTP


class PEagleDrafter(Eagle3Drafter):
    """Commits as an EAGLE-3 drafter does; the next committed slots overwrite those of masks."""

    kind = P_EAGLE
    method = PEAGLE_DECODE

    def propose(self, batch: BatchState, shape: Shape) -> Draft:
        """Return the first draft, and all others from one forward."""
        logits = self.logits(batch.sequences)
        if shape.depth > 1:
            assert self._feature is not None, "observe comes before this"
            ahead = shape.depth - 1
            masks = batch.bonus.new_full((len(batch.sequences), ahead), MASK)
            rows = chain_rows(masks, batch.position, batch.sequences, self.tail_length)
            feature = self._feature.index_select(0, batch.sequences)  # any; masks ignore it
            further, _ = self._run(rows, feature.expand(-1, ahead, -1))
            logits = torch.cat((logits, further), dim=1)
        return self._draft_in_parallel(batch, shape, logits)
