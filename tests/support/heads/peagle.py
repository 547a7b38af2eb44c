"""P-EAGLE heads: EAGLE-3's files with a mask, and texts that they draft, slowly."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.heads.files import (
    HeadShape,
    Tensors,
    head_tensors,
    safeailab_config,
    speculators_config,
    target_mask,
    write_head,
)
from support.heads.layouts import midlayer
from support.heads.reference_trees import Path as Drafted
from support.heads.reference_trees import ReferenceText

MASK_TOKEN = 7


def peagle_tensors(shape: HeadShape) -> Tensors:
    """A head of a few layers with a mask."""
    generator = torch.Generator().manual_seed(shape.seed + 1)
    mask = torch.randn(1, 1, shape.num_taps * shape.target_hidden, generator=generator)
    return head_tensors(shape) | {"mask_hidden": mask}


def write_peagle(
    directory: Path, shape: HeadShape, taps: list[int] | None = None, **changes: Any
) -> Path:
    """As speculators stores it."""
    config = speculators_config(shape, taps or [0, 1, 3])
    kind = {"speculators_model_type": "peagle", "architectures": ["PEagleDraftModel"]}
    tensors = peagle_tensors(shape)
    stored = tensors | {"t2d": target_mask(shape, tensors)}
    return write_head(directory, stored, config | kind | {"mask_token_id": MASK_TOKEN} | changes)


def write_flat_peagle(directory: Path, shape: HeadShape, **changes: Any) -> Path:
    """Flat, with names of its own: the mask's taps without further sizes."""
    tensors = midlayer(peagle_tensors(shape))
    tensors["mask_hidden"] = tensors["mask_hidden"].flatten()
    flags = {"norm_before_residual": shape.norm_before_residual, "pard_token": MASK_TOKEN}
    return write_head(directory, tensors, safeailab_config(shape, **flags) | changes)


@dataclass
class MaskedText(ReferenceText):
    """A text whose drafts are made of masks: of those before a place only the number counts."""

    def children(self, path: Drafted) -> list[tuple[int, float]]:
        return super().children((MASK_TOKEN,) * len(path))

    def run(self, following: list[int], features: Tensor) -> tuple[Tensor, Tensor]:
        masks = len(features) - (len(self.text) - 1)
        mask = self.head.fuse(self.head.tensors["mask_hidden"].view(1, -1))
        known = features[: len(features) - masks]
        return super().run(following, torch.cat((known, mask.expand(masks, -1))))
