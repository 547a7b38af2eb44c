"""Tensors of heads: tables that a head may share with its target, and the draft vocabulary.

Shapes: V is the target's vocabulary, Ht its hidden size, Vd the draft vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError, PairingError
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.weights import read_tensor

EMBEDDING, OUTPUT_TABLE = "embed_tokens.weight", "lm_head.weight"
TABLES = (EMBEDDING, OUTPUT_TABLE)
"""Parameters that a head's checkpoint may leave out, because they are the target's."""

MAPS = frozenset({"d2t", "t2d"})
"""Tensors of a checkpoint that are not parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadFiles:
    """A head's checkpoint; `names` maps our tensor names to the checkpoint's."""

    checkpoint: Checkpoint
    names: Mapping[str, str]

    @property
    def directory(self) -> Path:
        """The checkpoint's directory, for messages."""
        return self.checkpoint.directory

    def stored(self, name: str) -> str:
        """Return the checkpoint's name of a tensor, or ours if it has none."""
        return self.names.get(name, name)


def empty_linear(inputs: int, outputs: int, dtype: torch.dtype) -> nn.Linear:
    """Return a linear without bias whose weight has no memory yet."""
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype, device="meta")


def target_tables(
    shapes: Mapping[str, torch.Size], files: HeadFiles, target: TapTarget, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the target's tables [V, Ht] that fit a head with parameters of these `shapes`.

    A table that does not fit is not read: an INT4 output table is made dense for this. Raises
    PairingError for one that does not fit and that the checkpoint lacks.
    """
    size = (target.vocab_size, target.hidden_size)
    fitting = [name for name in TABLES if shapes[name] == size]
    for name in TABLES:
        if name not in files.names and name not in fitting:
            raise PairingError(
                f"{files.directory}: the head has no {name} and the target's is {list(size)}, "
                f"not {list(shapes[name])}"
            )
    tables = {
        name: target.embed_weight if name == EMBEDDING else target.lm_head_weight
        for name in fitting
    }
    return {name: table.detach().to(dtype) for name, table in tables.items()}


def read_head_tensor(
    files: HeadFiles, name: str, shape: torch.Size, table: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return a tensor of the head; `table` [V, Ht] of the target if the head has none or the same,
    so that one is stored."""
    if table is not None and name not in files.names:
        return table
    tensor = read_tensor(files.checkpoint, files.stored(name), shape, dtype)
    return table if table is not None and torch.equal(tensor, table) else tensor


def read_target_ids(head: HeadFiles, vocab: int, size: int) -> Tensor:
    """Return the absolute target id of every draft id, int64 [Vd], for V = `vocab`, Vd = `size`.

    `d2t` has offsets from the draft id, in any order: ModelOpt sorts by frequency, so offsets may
    be negative. Raises CheckpointError for a map that is missing, unfilled, ambiguous or
    inconsistent with `t2d`, PairingError for ids outside the vocabulary.
    """
    ids = _ids(head, vocab, size)
    if "t2d" in head.names:
        _check_mask(ids, vocab, head)
    return ids


def _ids(head: HeadFiles, vocab: int, size: int) -> Tensor:
    directory = head.directory
    if "d2t" not in head.names:
        if size != vocab:
            raise CheckpointError(
                f"{directory}: d2t is missing from a head with a reduced vocabulary"
            )
        return torch.arange(size)
    offsets = read_tensor(head.checkpoint, head.stored("d2t"), torch.Size([size]), torch.int64)
    if size < vocab and not offsets.any() and "t2d" not in head.names:
        raise CheckpointError(f"{directory}: d2t is all zero: the map was never filled")
    ids = torch.arange(size) + offsets
    if ids.min() < 0 or ids.max() >= vocab:
        raise PairingError(
            f"{directory}: d2t maps to ids {int(ids.min())}..{int(ids.max())} outside the "
            f"vocabulary of {vocab}"
        )
    if len(ids.unique()) != size:
        raise CheckpointError(f"{directory}: d2t maps two draft ids to one target id")
    return ids


def _check_mask(ids: Tensor, vocab: int, head: HeadFiles) -> None:
    """Check that `t2d`, bool or in older files bytes, marks the target ids that have a draft id."""
    mask = head.checkpoint.tensor(head.stored("t2d"))
    if mask.shape != (vocab,) or mask.is_floating_point():
        raise CheckpointError(
            f"{head.directory}: t2d is {mask.dtype} {list(mask.shape)}, not a mark for each of "
            f"{vocab} tokens"
        )
    marked = mask.nonzero().flatten()
    if not torch.equal(marked, ids.sort().values):
        raise CheckpointError(
            f"{head.directory}: t2d marks {len(marked)} tokens, not the {len(ids)} of d2t"
        )
