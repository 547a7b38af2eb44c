"""Read an assistant from disk, strictly: nothing unread, nothing unfilled."""

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError
from eagle_aot.export.drafters.gemma4_assistant.centroids import Centroids, clusters_of
from eagle_aot.export.drafters.gemma4_assistant.model import Gemma4Assistant
from eagle_aot.export.drafters.gemma4_assistant.reading import (
    EMBEDDING,
    ORDERING,
    OUTPUT_TABLE,
    AssistantFiles,
)
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import assign, check_shape, read_tensor
from eagle_aot.targets.gemma4 import Gemma4Target

OF_TARGET = ("target_norm.weight",)
"""Parameters that are the target's."""


def build_assistant(
    files: AssistantFiles, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> Gemma4Assistant:
    """The assistant of files that have been read, on the host, beside its target.

    Raises CheckpointError for damaged files and PairingError for another target.
    """
    draft = Gemma4Assistant(files.config, target.num_hidden_layers, dtype, caches)
    draft.check_target(target)
    check_tensors(draft, files)
    for name, shape in own_shapes(draft).items():
        assign(draft, name, read_tensor(files.checkpoint, files.stored(name), shape, dtype))
    if isinstance(masked := draft.masked_embedding, Centroids):
        masked.cluster_of = _clusters(files, masked)
    return beside(draft, target)


def beside(draft: Gemma4Assistant, target: TapTarget) -> Gemma4Assistant:
    """The same with the target's final norm, which is one tensor of both."""
    assert isinstance(target, Gemma4Target) and isinstance(target.norm.weight, nn.Parameter)
    draft.target_norm.weight, draft.target_norm.eps = target.norm.weight, target.norm.eps
    return draft.eval()


def check_tensors(draft: Gemma4Assistant, files: AssistantFiles) -> None:
    """What loading refuses by names and shapes; no tensor is read but tables that should agree."""
    checkpoint, shapes = files.checkpoint, own_shapes(draft)
    used = {files.stored(name) for name in shapes} | {ORDERING, EMBEDDING, OUTPUT_TABLE}
    unknown = sorted(name for name in checkpoint.names() if name not in used)
    if any(".k_proj." in name or ".v_proj." in name for name in unknown):
        raise CheckpointError(f"{files.directory}: {unknown[0]}: an assistant has queries alone")
    if unknown:
        raise CheckpointError(f"{files.directory}: unknown tensors {', '.join(unknown[:5])}")
    for name, shape in shapes.items():
        check_shape(checkpoint, files.stored(name), checkpoint.shape(files.stored(name)), shape)
    if files.tied and OUTPUT_TABLE in checkpoint:
        check_same_table(files)


def check_same_table(files: AssistantFiles) -> None:
    """Raise CheckpointError where tied tables are two."""
    tables = (files.checkpoint.tensor(name) for name in (OUTPUT_TABLE, EMBEDDING))
    if not torch.equal(*tables):
        raise CheckpointError(
            f"{files.directory}: config.json ties the tables, but {OUTPUT_TABLE} is another"
        )


def own_shapes(draft: Gemma4Assistant) -> dict[str, torch.Size]:
    """Every parameter's shape, by the module's names, but for those of the target."""
    shapes = {name: tensor.shape for name, tensor in draft.state_dict().items()}
    return {name: shape for name, shape in shapes.items() if name not in OF_TARGET}


def _clusters(files: AssistantFiles, masked: Centroids) -> Tensor:
    shape = masked.cluster_of.shape
    ordering = read_tensor(files.checkpoint, ORDERING, shape, torch.int64)
    return clusters_of(ordering, masked.centroids.out_features, str(files.directory))
