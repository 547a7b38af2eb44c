"""The draft vocabulary: which target id every draft id stands for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, PairingError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.weights import read_tensor


class HeadFiles(Protocol):
    """A head on disk, with the checkpoint's tensor names by ours."""

    @property
    def checkpoint(self) -> Checkpoint: ...

    @property
    def names(self) -> Mapping[str, str]: ...

    @property
    def directory(self) -> Path: ...

    def stored(self, name: str) -> str: ...


class VocabularySizes(Protocol):
    """Of the target's vocabulary and of the head's."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def draft_vocab_size(self) -> int: ...


def read_target_ids(config: VocabularySizes, head: HeadFiles) -> Tensor:
    """Absolute target id of every draft id, int64 [Vd].

    `d2t` holds offsets from the draft id, in no particular order: ModelOpt sorts by frequency,
    so offsets may be negative. Raises CheckpointError for a map that is missing, unfilled,
    ambiguous or not the one that `t2d` marks, PairingError for ids outside the vocabulary.
    """
    ids = _ids(config, head)
    if "t2d" in head.names:
        _check_mask(ids, config, head)
    return ids


def _ids(config: VocabularySizes, head: HeadFiles) -> Tensor:
    where, vocab, size = head.directory, config.vocab_size, config.draft_vocab_size
    if "d2t" not in head.names:
        if size != vocab:
            raise CheckpointError(f"{where}: d2t is missing from a head with a reduced vocabulary")
        return torch.arange(size)
    offsets = read_tensor(head.checkpoint, head.stored("d2t"), torch.Size([size]), torch.int64)
    if size < vocab and not offsets.any() and "t2d" not in head.names:
        raise CheckpointError(f"{where}: d2t is all zero: the map was never filled")
    ids = torch.arange(size) + offsets
    if ids.min() < 0 or ids.max() >= vocab:
        raise PairingError(
            f"{where}: d2t maps to ids {int(ids.min())}..{int(ids.max())} outside the vocabulary "
            f"of {vocab}"
        )
    if len(ids.unique()) != size:
        raise CheckpointError(f"{where}: d2t maps two draft ids to one target id")
    return ids


def _check_mask(ids: Tensor, config: VocabularySizes, head: HeadFiles) -> None:
    """`t2d` marks the target ids that have a draft id: bool, or bytes in older files."""
    mask = head.checkpoint.tensor(head.stored("t2d"))
    if mask.shape != (config.vocab_size,) or mask.is_floating_point():
        raise CheckpointError(
            f"{head.directory}: t2d is {mask.dtype} {list(mask.shape)}, not a mark for each of "
            f"{config.vocab_size} tokens"
        )
    marked = mask.nonzero().flatten()
    if not torch.equal(marked, ids.sort().values):
        raise CheckpointError(
            f"{head.directory}: t2d marks {len(marked)} tokens, not the {len(ids)} of d2t"
        )
