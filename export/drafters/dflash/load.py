"""Read a DFlash head from disk, strictly: nothing unread, nothing unfilled."""

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, PairingError
from eagle_aot.export.drafters.dflash.model import DFlashDraft
from eagle_aot.export.drafters.dflash.reading import EMBEDDING, LM_HEAD, MAPS, DFlashFiles
from eagle_aot.export.drafters.draft_vocabulary import read_target_ids
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import assign, check_shape, read_tensor

TABLES = (EMBEDDING, LM_HEAD)
"""What a head may leave to its target, and usually does."""


def build_dflash(
    files: DFlashFiles, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> DFlashDraft:
    """The head of files that have been read, on the host. Raises CheckpointError for damaged files
    and PairingError for another target."""
    with torch.device("meta"):
        check_tensors(DFlashDraft(files.config, dtype, caches), files)
    draft = DFlashDraft(files.config, dtype, caches)
    draft.check_target(target)
    for name, shape in own_shapes(draft).items():
        assign(draft, name, _tensor(files, target, name, shape, dtype))
    draft.target_ids = read_target_ids(files.config, files)
    return draft.eval()


def check_tensors(draft: DFlashDraft, files: DFlashFiles) -> None:
    """What loading refuses by names and shapes; no tensor is read, and `draft` may be meta."""
    shapes = own_shapes(draft)
    if unknown := sorted(set(files.names) - set(shapes) - MAPS):
        raise CheckpointError(f"{files.directory}: unknown tensors {', '.join(unknown[:5])}")
    for name, shape in shapes.items():
        if name in TABLES and name not in files.names:
            continue
        stored = files.stored(name)
        check_shape(files.checkpoint, stored, files.checkpoint.shape(stored), shape)


def own_shapes(draft: DFlashDraft) -> dict[str, torch.Size]:
    """Every parameter's shape."""
    return {name: tensor.shape for name, tensor in draft.state_dict().items()}


def _tensor(
    files: DFlashFiles, target: TapTarget, name: str, shape: torch.Size, dtype: torch.dtype
) -> Tensor:
    """The head's tensor, or the target's where the head has none or the same: one is stored."""
    own = None
    if name in files.names:
        own = read_tensor(files.checkpoint, files.stored(name), shape, dtype)
    if name not in TABLES:
        assert own is not None
        return own
    size = (target.vocab_size, target.hidden_size)
    if shape != size:
        if own is None:
            raise PairingError(
                f"{files.directory}: the head has no {name} and the target's is {list(size)}, "
                f"not {list(shape)}"
            )
        return own
    table = (target.embed_weight if name == EMBEDDING else target.lm_head_weight).detach()
    table = table.to(dtype)
    return table if own is None or torch.equal(own, table) else own
