"""Load an EAGLE-3 or P-EAGLE head. A missing, unknown or misshapen tensor is an error."""

from collections.abc import Sequence
from pathlib import Path

import torch

from eagle_aot.common.errors import CheckpointError
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft, ParallelDraft, new_draft
from eagle_aot.export.drafters.eagle3.reading.geometry import read_geometry
from eagle_aot.export.drafters.eagle3.reading.layout import HeadLayout, read_layout
from eagle_aot.export.drafters.eagle3.reading.names import MASK_HIDDEN
from eagle_aot.export.drafters.head_tensors import (
    EMBEDDING,
    MAPS,
    OUTPUT_TABLE,
    TABLES,
    read_head_tensor,
    read_target_ids,
    target_tables,
)
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import assign, read_tensor

COMPUTED = ("target_ids", "mask_feature")
"""Entries of a head's state that are computed from other tensors of its checkpoint."""


def load_draft(
    path: str | Path,
    target: TapTarget | None = None,
    max_seq_len: int = 4096,
    dtype: torch.dtype = torch.float32,
    tap_layers: Sequence[int] | None = None,
    max_batch_size: int = 1,
) -> Eagle3Draft:
    """Load the head in directory `path` on the host.

    `target` supplies the tables that the head lacks or shares, and the number of layers from which
    default taps follow. `tap_layers` are boundaries that replace the checkpoint's. Caches hold
    `max_batch_size` sequences of up to `max_seq_len` slots each. Raises CheckpointError for a
    damaged or contradictory checkpoint, UnsupportedError for another kind of head and unknown
    options, and PairingError for a head of another target.
    """
    num_layers = None if target is None else target.num_hidden_layers
    head = read_layout(Checkpoint(path), num_layers, tap_layers)
    return load_layout(head, target, dtype, CacheSpec(max_seq_len, dtype, max_batch_size))


def load_layout(
    head: HeadLayout, target: TapTarget | None, dtype: torch.dtype, caches: CacheSpec
) -> Eagle3Draft:
    """Load the head of a layout; `target` and errors are those of `load_draft`."""
    config = read_geometry(head, None if target is None else target.num_hidden_layers)
    with torch.device("meta"):  # so that wrong sizes in a config.json cost no memory
        plan = new_draft(config, dtype, caches)
    check_shapes(plan, head)
    if target is None and OUTPUT_TABLE not in head.names:
        raise CheckpointError(f"{head.directory}: no lm_head.weight: load it with its target")
    shapes = parameter_shapes(plan, head)
    tables = {} if target is None else target_tables(shapes, head, target, dtype)
    draft = new_draft(config, dtype, caches)
    draft.has_embedding = target is not None or EMBEDDING in head.names
    for name, shape in shapes.items():
        if name != EMBEDDING or draft.has_embedding:
            assign(draft, name, read_head_tensor(head, name, shape, tables.get(name), dtype))
    draft.target_ids = read_target_ids(head, config.vocab_size, config.draft_vocab_size)
    if isinstance(draft, ParallelDraft):
        stored = head.stored(MASK_HIDDEN)
        shape = head.checkpoint.shape(stored)
        draft.set_mask(read_tensor(head.checkpoint, stored, shape, dtype))
    return draft.eval()


def parameter_shapes(draft: Eagle3Draft, head: HeadLayout) -> dict[str, torch.Size]:
    """Return the shape of every parameter. Raises CheckpointError for unknown tensors."""
    shapes = {name: t.shape for name, t in draft.state_dict().items() if name not in COMPUTED}
    if unknown := sorted(set(head.names) - set(shapes) - MAPS - {MASK_HIDDEN}):
        raise CheckpointError(f"{head.directory}: unknown tensors {', '.join(unknown[:5])}")
    return shapes


def check_shapes(draft: Eagle3Draft, head: HeadLayout) -> None:
    """Raise CheckpointError for wrong names and shapes; reads no tensor. `draft` may be meta."""
    if isinstance(draft, ParallelDraft):
        check_mask(draft, head)
    for name, shape in parameter_shapes(draft, head).items():
        if name in TABLES and name not in head.names:
            continue
        stored = head.checkpoint.shape(head.stored(name))
        if stored != shape:
            raise CheckpointError(
                f"{head.directory}: {name} is {list(stored)}, config.json says {list(shape)}"
            )


def check_mask(draft: Eagle3Draft, head: HeadLayout) -> None:
    """Raise CheckpointError unless the mask is one row of taps, with any number of leading ones."""
    if MASK_HIDDEN not in head.names:
        raise CheckpointError(f"{head.directory}: a P-EAGLE head without {MASK_HIDDEN}")
    shape, width = head.checkpoint.shape(head.stored(MASK_HIDDEN)), draft.fc.in_features
    if shape.numel() != width:
        raise CheckpointError(f"{head.directory}: {MASK_HIDDEN} is {list(shape)}, fc reads {width}")
