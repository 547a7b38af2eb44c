"""Read an EAGLE-3 head from disk.

Loading is strict: a tensor that is missing, unknown or of the wrong shape is an error, never
skipped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, PairingError
from eagle_aot.export.drafters.draft_vocabulary import read_target_ids
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.parallel import ParallelDraft, new_draft
from eagle_aot.export.drafters.eagle3.reading.geometry import read_geometry
from eagle_aot.export.drafters.eagle3.reading.layout import HeadLayout, read_layout
from eagle_aot.export.drafters.eagle3.reading.mask import MASK_HIDDEN
from eagle_aot.export.drafters.eagle3.reading.names import MAPS
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import assign, read_tensor

EMBEDDING, OUTPUT_TABLE = "embed_tokens.weight", "lm_head.weight"
MADE = ("target_ids", "mask_feature")
"""What is computed from other tensors of a head."""
TABLES = (EMBEDDING, OUTPUT_TABLE)
"""What a head may leave to its target."""


def load_draft(
    path: str | Path,
    target: TapTarget | None = None,
    max_seq_len: int = 4096,
    dtype: torch.dtype = torch.float32,
    tap_layers: Sequence[int] | None = None,
    max_batch_size: int = 1,
) -> Eagle3Draft:
    """The head in directory `path`, on the host.

    `target` supplies what the head shares with it: the embedding of a head that has none (its raw
    rows), the output table of a full-vocabulary head that has none, and the layer count from which
    unnamed tap layers follow; a table that equals the target's becomes the target's. `tap_layers`
    are boundaries that overrule what the checkpoint says. Caches hold `max_batch_size` sequences of
    up to `max_seq_len` slots each. Raises CheckpointError for a damaged or
    contradictory checkpoint, UnsupportedError for a head that is not EAGLE-3 or uses options this
    version does not know, and PairingError when the head cannot belong to `target`.
    """
    num_layers = None if target is None else target.num_hidden_layers
    head = read_layout(HeadCheckpoint(path), num_layers, tap_layers)
    return build_draft(head, target, dtype, CacheSpec(max_seq_len, dtype, max_batch_size))


def build_draft(
    head: HeadLayout, target: TapTarget | None, dtype: torch.dtype, caches: CacheSpec
) -> Eagle3Draft:
    """The head of a layout that has been read; `target` and errors as for `load_draft`."""
    config = read_geometry(head, None if target is None else target.num_hidden_layers)
    with torch.device("meta"):  # sizes that a config.json makes up are refused before they cost
        plan = new_draft(config, dtype, caches)
    check_shapes(plan, head)
    tables = _tables_of_target(plan, head, target, dtype)
    draft = new_draft(config, dtype, caches)
    draft.has_embedding = plan.has_embedding
    _fill(draft, head, tables, dtype)
    draft.target_ids = read_target_ids(draft.config, head)
    if isinstance(draft, ParallelDraft):
        stored = head.stored(MASK_HIDDEN)
        shape = head.checkpoint.shape(stored)
        draft.set_mask(read_tensor(head.checkpoint, stored, shape, dtype))
    return draft.eval()


def _tables_of_target(
    draft: Eagle3Draft, head: HeadLayout, target: TapTarget | None, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The target's tables by the names of ours, in the head's dtype.

    Only those that the head lacks, which must fit, and those that might equal the head's.
    """
    if target is None:
        if OUTPUT_TABLE not in head.names:
            raise CheckpointError(f"{head.directory}: no lm_head.weight: load it with its target")
        draft.has_embedding = EMBEDDING in head.names
        return {}
    parameters, size = draft.state_dict(), (target.vocab_size, target.hidden_size)
    fitting = [name for name in TABLES if parameters[name].shape == size]
    for name in TABLES:
        if name not in head.names and name not in fitting:
            raise PairingError(
                f"{head.directory}: the head has no {name} and the target's is "
                f"{list(size)}, not {list(parameters[name].shape)}"
            )
    return {name: _table(target, name).detach().to(dtype) for name in fitting}


def _table(target: TapTarget, name: str) -> Tensor:
    """Only where it fits: an INT4 output table is made dense for this."""
    return target.embed_weight if name == EMBEDDING else target.lm_head_weight


def _fill(
    draft: Eagle3Draft, head: HeadLayout, tables: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    wanted = parameter_shapes(draft, head)
    if not draft.has_embedding:
        del wanted[EMBEDDING]
    for name, shape in wanted.items():
        assign(draft, name, _tensor(head, name, shape, tables.get(name), dtype))


def parameter_shapes(draft: Eagle3Draft, head: HeadLayout) -> dict[str, torch.Size]:
    """Every parameter's shape. Raises CheckpointError for a tensor that is not one of them."""
    wanted = {name: t.shape for name, t in draft.state_dict().items() if name not in MADE}
    unknown = sorted(set(head.names) - set(wanted) - MAPS - {MASK_HIDDEN})
    if unknown:
        raise CheckpointError(f"{head.directory}: unknown tensors {', '.join(unknown[:5])}")
    return wanted


def check_shapes(draft: Eagle3Draft, head: HeadLayout) -> None:
    """What loading refuses by names and shapes; no tensor is read, and `draft` may be meta."""
    if isinstance(draft, ParallelDraft):
        check_mask(draft, head)
    for name, shape in parameter_shapes(draft, head).items():
        if name in TABLES and name not in head.names:
            continue
        found = head.checkpoint.shape(head.stored(name))
        if found != shape:
            raise CheckpointError(
                f"{head.directory}: {name} is {list(found)}, config.json says {list(shape)}"
            )


def check_mask(draft: Eagle3Draft, head: HeadLayout) -> None:
    """Raise CheckpointError unless the mask is one row of taps, however many ones its shape has."""
    if MASK_HIDDEN not in head.names:
        raise CheckpointError(f"{head.directory}: a P-EAGLE head without {MASK_HIDDEN}")
    shape, width = head.checkpoint.shape(head.stored(MASK_HIDDEN)), draft.fc.in_features
    if shape.numel() != width:
        raise CheckpointError(f"{head.directory}: {MASK_HIDDEN} is {list(shape)}, fc reads {width}")


def _tensor(
    head: HeadLayout, name: str, shape: torch.Size, table: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The head's tensor, or the target's where the head has none or the same: one is stored."""
    if table is not None and name not in head.names:
        return table
    own = read_tensor(head.checkpoint, head.stored(name), shape, dtype)
    return table if table is not None and torch.equal(own, table) else own
