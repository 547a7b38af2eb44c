"""What an artifact says about itself, and the tokenizer that travels with it."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eagle_aot import __version__
from eagle_aot.artifact import (
    DRAFT_IDS,
    SCHEMA_VERSION,
    CheckpointIdentity,
    Constants,
    Device,
    FileRecord,
    Manifest,
    RowRange,
    Stage,
    TargetIdentity,
    file_records,
    tokenizer_files,
)
from eagle_aot.artifact.versions import installed_versions
from eagle_aot.common.errors import ArtifactError, CheckpointError
from eagle_aot.common.tokenizer import Tokenizer, tokenizer_problem
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.reading.files import BIN_INDEX, HeadCheckpoint
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.load import DUMMY, Source
from eagle_aot.export.methods import method_specs
from eagle_aot.export.options import ExportOptions, record_options
from eagle_aot.export.pair import Pair
from eagle_aot.targets.checkpoint import INDEX, read_json
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.step import TAIL, flat_slots

SIDE_FILES = ("config.json", "quantize_config.json", INDEX, BIN_INDEX)
"""What is read of a checkpoint beside its weights and, of a target, its tokenizer."""


def publish(
    pair: Pair, lengths: MethodLengths, chain_len: int, eos_ids: tuple[int, ...]
) -> Constants:
    """The constants of an artifact."""
    target, head = pair.target, pair.draft.config
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
        draft_vocab_size=head.draft_vocab_size,
        hidden_size=head.hidden_size,
        eos_ids=eos_ids,
    )


def describe(
    pair: Pair,
    lengths: MethodLengths,
    constants: Constants,
    source: Source,
    directory: Path,
    *,
    options: ExportOptions,
    decisions: dict[str, Any],
    device: Device | None,
    caches: list[str],
    stages: list[Stage],
    self_test: dict[str, Any] | None = None,
) -> Manifest:
    """The manifest of the files that are in `directory`; `options` as they were chosen, `caches`
    as the methods were traced."""
    methods = method_specs(pair, lengths)
    target = identity(source.target_dir, source.load_format)
    return Manifest(
        schema_version=SCHEMA_VERSION,
        eagle_aot_version=__version__,
        versions=installed_versions(),
        backend=options.backend,
        device=device,
        drafter=pair.draft.kind,
        target=TargetIdentity(
            name=source.target_model, directory=target.directory, files=target.files
        ),
        draft=identity(source.draft_dir, source.load_format),
        options=record_options(source, options),
        decisions=decisions,
        constants=constants.methods(),
        methods=list(methods),
        shapes={
            name: RowRange(min_rows=method.min_rows, max_rows=method.max_rows)
            for name, method in methods.items()
        },
        caches=caches,
        stages=stages,
        self_test=self_test,
        files=file_records(sorted(directory.iterdir())),
    )


def identity(directory: Path | None, load_format: str) -> CheckpointIdentity:
    """Name and files of a checkpoint's directory; None and no files for random weights."""
    if directory is None or load_format == DUMMY:
        return CheckpointIdentity(directory=None, files={})
    name, files = directory.absolute().name, checkpoint_records(directory)
    return CheckpointIdentity(directory=name, files=files)


def checkpoint_records(directory: Path) -> dict[str, FileRecord]:
    """Config, indices and weights by file name. A target's tokenizer is in the artifact."""
    beside = [directory / name for name in SIDE_FILES if (directory / name).is_file()]
    return file_records([*beside, *HeadCheckpoint(directory).files()])


def copy_tokenizer(source: Source, directory: Path) -> None:
    """Put the target's tokenizer into the artifact."""
    for path in find_tokenizer(source):
        shutil.copyfile(path, directory / path.name)


def write_draft_ids(draft: Eagle3Draft, directory: Path) -> None:
    """Put the target's ids of the head's vocabulary into the artifact, unless they are the same."""
    ids = draft.target_ids.cpu()
    if not torch.equal(ids, torch.arange(len(ids))):
        save_file({"target_ids": ids.contiguous()}, directory / DRAFT_IDS)


def check_tokenizer(source: Source) -> None:
    """Raise CheckpointError unless the target's tokenizer loads, as a runner will load it."""
    if not find_tokenizer(source) or source.target_dir is None:
        return
    try:
        Tokenizer(source.target_dir)
    except ArtifactError as error:
        raise CheckpointError(str(error)) from error


def find_tokenizer(source: Source) -> list[Path]:
    """The target's tokenizer files; none for a dummy without a directory.

    Raises CheckpointError when the target's directory has no tokenizer, or one that no runner would
    load.
    """
    if source.target_dir is None:
        return []
    files = tokenizer_files(source.target_dir)
    if not any(path.name.startswith("tokenizer.") for path in files):
        raise CheckpointError(f"{source.target_dir}: no tokenizer.json or tokenizer.model")
    if problem := tokenizer_problem(source.target_dir):
        raise CheckpointError(problem)
    return files


def read_eos_ids(target_dir: Path | None) -> tuple[int, ...]:
    """Ids that stop generation: `generation_config.json`, else the config's. Empty when unsaid.

    Raises CheckpointError for something other than an id or a list of ids.
    """
    if target_dir is None:
        return ()
    for name in ("generation_config.json", "config.json"):
        path = target_dir / name
        config = ConfigSection(read_json(path) if path.is_file() else {}, path)
        nested = config.section("text_config").values.get("eos_token_id")
        value = config.values.get("eos_token_id", nested)
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(type(i) is int and i >= 0 for i in ids):
            raise CheckpointError(f"{path}: eos_token_id {value!r} is not a list of token ids")
        return tuple(ids)
    return ()
