"""What an artifact says about itself, and the drafter's ids that travel with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import asdict
from safetensors.torch import save_file

from eagle_aot import __version__
from eagle_aot.artifact import (
    DRAFT_IDS,
    SCHEMA_VERSION,
    Constants,
    Device,
    FileRecord,
    ImageInputs,
    Manifest,
    RowRange,
    Stage,
    TargetIdentity,
)
from eagle_aot.artifact.versions import installed_versions
from eagle_aot.common.errors import CheckpointError
from eagle_aot.export.drafters.protocol import Drafter
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.loading.checkpoints import ResolvedCheckpoints, target_name
from eagle_aot.export.method_spec import IS_IMAGE, MethodSpec
from eagle_aot.export.pair import Pair
from eagle_aot.targets.step import TAIL, flat_slots


def publish(
    pair: Pair, lengths: MethodLengths, chain_len: int, eos_ids: tuple[int, ...]
) -> Constants:
    """The constants of an artifact."""
    target = pair.target
    if eos_ids and max(eos_ids) >= target.vocab_size:
        raise CheckpointError(
            f"eos_token_id {max(eos_ids)} is outside the vocabulary of {target.vocab_size}"
        )
    return Constants(
        max_seq_len=target.max_seq_len,
        vocab_size=target.vocab_size,
        n_layers=target.num_hidden_layers,
        min_prefill_chunk=lengths.min_prefill,
        max_prefill_chunk=lengths.max_prefill,
        sliding_window=target.sliding_window,
        chain_len=chain_len,
        max_rows=lengths.max_rows,
        max_batch_size=lengths.max_batch_size,
        tail=TAIL,
        flat_slots=flat_slots(target.max_seq_len),
        draft_vocab_size=len(pair.draft.target_ids),
        hidden_size=pair.draft.hidden_size,
        eos_ids=eos_ids,
    )


def describe(
    checkpoints: ResolvedCheckpoints,
    drafter: str,
    methods: Mapping[str, MethodSpec],
    constants: Constants,
    files: dict[str, FileRecord],
    *,
    options: dict[str, Any],
    decisions: dict[str, Any],
    device: Device | None,
    stages: list[Stage],
    self_test: dict[str, Any] | None = None,
    images: ImageInputs | None = None,
) -> Manifest:
    """Return the manifest of an artifact of these files.

    `options` are recorded as they are; `drafter` is the kind of the drafter that was loaded.
    """
    spec, provenance = checkpoints.spec, checkpoints.provenance
    return Manifest(
        schema_version=SCHEMA_VERSION,
        eagle_aot_version=__version__,
        versions=installed_versions(),
        backend=spec.backend,
        device=device,
        drafter=drafter,
        target=TargetIdentity(name=target_name(spec), **asdict(provenance.target)),
        draft=provenance.draft,
        options=options,
        decisions=decisions,
        constants=constants.methods(),
        methods=list(methods),
        shapes={
            name: RowRange(min_rows=method.min_rows, max_rows=method.max_rows)
            for name, method in methods.items()
        },
        caches=sorted(set().union(*(method.writes for method in methods.values()))),
        stages=stages,
        self_test=self_test,
        files=files,
        images=images,
    )


def image_inputs(
    pair: Pair, lengths: MethodLengths, methods: Mapping[str, MethodSpec]
) -> ImageInputs | None:
    """Return what stands for images in prompts, or None where prompts hold no images."""
    if pair.vision is None or pair.picture_tokens is None:
        return None
    config, tokens = pair.vision.config, pair.picture_tokens
    return ImageInputs(
        rows=list(lengths.image_tokens),
        hidden_size=pair.target.hidden_size,
        patch_size=config.patch_size,
        pooling=config.pooling_kernel_size,
        image_token=tokens.image,
        begin_token=tokens.begin,
        end_token=tokens.end,
        never=list(tokens.never),
        sees_whole=pair.sees_whole,
        drafter_reads_images=any(IS_IMAGE in method.inputs for method in methods.values()),
    )


def write_draft_ids(draft: Drafter, directory: Path) -> None:
    """Put the target id of each draft id into the artifact, unless they are the same."""
    ids = draft.target_ids.cpu()
    if not torch.equal(ids, torch.arange(len(ids))):
        save_file({"target_ids": ids.contiguous()}, directory / DRAFT_IDS)
