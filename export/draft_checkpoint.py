"""Read an EAGLE-3 head from disk.

Loading is strict: a tensor that is missing, unknown or of the wrong shape is an error, never
skipped.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from eagle_aot.errors import CheckpointError, PairingError
from eagle_aot.export.draft_geometry import read_geometry
from eagle_aot.export.draft_head import Eagle3Draft
from eagle_aot.export.draft_layout import HeadLayout, read_layout
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.weights import assign, checked


def load_draft(
    path: str | Path,
    target: TapTarget | None = None,
    max_seq_len: int = 4096,
    dtype: torch.dtype = torch.float32,
) -> Eagle3Draft:
    """The head in directory `path`, on the host.

    `target` supplies what the head shares with it: the embedding of a head that has none (its raw
    rows), the output table of a full-vocabulary head that has none, and the layer count from which
    unnamed tap layers follow. Raises CheckpointError for a damaged or contradictory checkpoint,
    UnsupportedError for a head that is not EAGLE-3 or uses options this version does not know, and
    PairingError when the head cannot belong to `target`.
    """
    num_layers = None if target is None else target.num_hidden_layers
    head = read_layout(Checkpoint(path), num_layers)
    draft = Eagle3Draft(read_geometry(head, num_layers), max_seq_len, dtype)
    _fill(draft, head, _share_with_target(draft, head, target, dtype), dtype)
    draft.target_ids = _target_ids(draft, head)
    return draft.eval()


def _share_with_target(
    draft: Eagle3Draft, head: HeadLayout, target: TapTarget | None, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Tables that the head lacks, from the target, by parameter name, in the head's dtype."""
    shared: dict[str, Tensor] = {}
    if "embed_tokens.weight" not in head.names:
        draft.has_embedding = target is not None
        if target is not None:
            shared["embed_tokens.weight"] = target.embed_weight
    if "lm_head.weight" not in head.names:
        if target is None:
            raise CheckpointError(f"{head.directory}: no lm_head.weight: load it with its target")
        shared["lm_head.weight"] = target.lm_head_weight
    parameters = draft.state_dict()
    for name, table in shared.items():
        if table.shape != parameters[name].shape:
            raise PairingError(
                f"{head.directory}: the head has no {name} and the target's is "
                f"{list(table.shape)}, not {list(parameters[name].shape)}"
            )
    return {name: table.detach().to(dtype) for name, table in shared.items()}


def _fill(
    draft: Eagle3Draft, head: HeadLayout, shared: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    wanted = {name: t.shape for name, t in draft.state_dict().items() if name != "target_ids"}
    unknown = sorted(set(head.names) - set(wanted) - {"d2t"})
    if unknown:
        raise CheckpointError(f"{head.directory}: unknown tensors {', '.join(unknown[:5])}")
    if not draft.has_embedding:
        del wanted["embed_tokens.weight"]
    for name, shape in wanted.items():
        tensor = shared.get(name)
        if tensor is None:
            tensor = checked(head.checkpoint, head.stored(name), shape, dtype)
        assign(draft, name, tensor)


def _target_ids(draft: Eagle3Draft, head: HeadLayout) -> Tensor:
    """Absolute target id of every draft id; d2t holds offsets, in no particular order."""
    where, vocab = head.directory, draft.config.vocab_size
    size = draft.config.draft_vocab_size
    if "d2t" not in head.names:
        if size != vocab:
            raise CheckpointError(f"{where}: d2t is missing from a head with a reduced vocabulary")
        return torch.arange(size)
    offsets = checked(head.checkpoint, head.stored("d2t"), torch.Size([size]), torch.int64)
    if size < vocab and not offsets.any():
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
