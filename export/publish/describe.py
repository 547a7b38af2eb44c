"""The manifest and constants of an artifact, and its map of draft ids."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import asdict
from torch.export import ExportedProgram

from eagle_aot import __version__
from eagle_aot.artifact import (
    DRAFT_IDS,
    SCHEMA_VERSION,
    CacheBytes,
    Constants,
    Device,
    FileRecord,
    ImageInputs,
    Manifest,
    RowRange,
    Stage,
    TargetIdentity,
)
from eagle_aot.artifact.manifest import installed_versions
from eagle_aot.common.errors import CheckpointError
from eagle_aot.common.tensors import save_tensors
from eagle_aot.export.drafters.protocol import DraftModel
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.loading.checkpoints import ResolvedCheckpoints, target_name
from eagle_aot.export.loading.load import LoadedPair
from eagle_aot.export.lowering.backend import DTYPES
from eagle_aot.export.method_spec import IS_IMAGE, MethodSpec
from eagle_aot.export.pair import Pair
from eagle_aot.export.publish.kernel_choices import kernel_choices
from eagle_aot.export.spec import SPLITK, STOCK
from eagle_aot.targets import TapTarget
from eagle_aot.targets.images import SOFT_TOKENS
from eagle_aot.targets.pre_norm.model import PreNormDecoder
from eagle_aot.targets.step import TAIL, flat_slots

PROMPT = "prompt"
"""The operator that methods for prompts use in place of `SPLITK`."""


def describe_constants(
    pair: Pair, lengths: MethodLengths, chain_len: int, eos_ids: tuple[int, ...]
) -> Constants:
    """Return the constants of an artifact. Raises CheckpointError for a stop id outside the
    vocabulary."""
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
        max_step_rows=lengths.max_step_rows,
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
    """Return the manifest of an artifact; `drafter` is the kind of the drafter that was loaded."""
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
            name: RowRange(min_rows=m.min_rows, max_rows=m.max_rows, lines=m.lines)
            for name, m in methods.items()
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
    """Return how prompts represent images; None if prompts contain no images."""
    if pair.vision is None or pair.image_tokens is None:
        return None
    config, tokens = pair.vision.config, pair.image_tokens
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


def write_draft_ids(draft: DraftModel, directory: Path) -> None:
    """Write the target id of each draft id into `directory`, unless all are the same."""
    ids = draft.target_ids.cpu()
    if not torch.equal(ids, torch.arange(len(ids))):
        save_tensors({"target_ids": ids.contiguous()}, directory / DRAFT_IDS)


def describe_decisions(
    loaded: LoadedPair,
    backend: str,
    methods: Mapping[str, MethodSpec],
    programs: Mapping[str, ExportedProgram],
    sequences: int,
) -> dict[str, Any]:
    """Return every decision of an export as JSON; `programs` are its methods before lowering, and
    `sequences` is how many its caches hold."""
    return {
        "dtype": str(DTYPES[backend]).removeprefix("torch."),
        **loaded.reading,
        "linears": loaded.linears,
        "attention": {name: attention(method) for name, method in methods.items()},
        "caches": cache_bytes(methods, sequences).to_json(),
        "kernels": {name: kernel_choices(program) for name, program in programs.items()},
        **describe_encoder(loaded.pair),
        **describe_rope(loaded.pair.target),
    }


def describe_rope(target: TapTarget) -> dict[str, Any]:
    """Return which frequencies follow from the number of positions; nothing if none do."""
    decision = target.config.rope.decision if isinstance(target, PreNormDecoder) else {}
    return {"rope": decision} if decision else {}


def describe_encoder(pair: Pair) -> dict[str, Any]:
    """Return the cost of encoding an image; nothing for a target that reads no images."""
    if pair.vision is None:
        return {}
    operations = {str(rows): pair.vision.config.operations(rows) for rows in SOFT_TOKENS}
    parameters = sum(tensor.numel() for tensor in pair.vision.parameters())
    return {"tower": {"parameters": parameters, "operations": operations}}


def attention(method: MethodSpec) -> str:
    """Return the name of the operator that reads the method's caches."""
    if not method.use_splitk:
        return STOCK
    return SPLITK if method.few_rows else PROMPT


def cache_bytes(methods: Mapping[str, MethodSpec], sequences: int) -> CacheBytes:
    """Return the bytes of the caches that the methods write, of all sequences and of one."""
    caches = {
        name: buffer.nbytes
        for method in methods.values()
        for name, buffer in method.module.named_buffers()
        if name in method.writes
    }
    target = sum(size for name, size in caches.items() if name.startswith("target."))
    total = sum(caches.values())
    return CacheBytes(
        bytes=total,
        bytes_of_a_sequence=total // sequences,
        target_bytes_of_a_sequence=target // sequences,
        draft_bytes_of_a_sequence=(total - target) // sequences,
    )
