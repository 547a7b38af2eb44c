"""What an artifact says about itself, and the tokenizer that travels with it."""

import platform
import shutil
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from eagle_aot import __version__
from eagle_aot.artifact import (
    SCHEMA_VERSION,
    Constants,
    Manifest,
    sha256_of,
    tokenizer_files,
)
from eagle_aot.errors import CheckpointError
from eagle_aot.export.draft_files import HeadCheckpoint
from eagle_aot.export.methods import traced_methods
from eagle_aot.export.progress import Stage
from eagle_aot.export.source import Source
from eagle_aot.export.speculator import Eagle3Speculator
from eagle_aot.export.verify_window import MethodLengths
from eagle_aot.targets.checkpoint import read_json
from eagle_aot.targets.config_section import ConfigSection

PACKAGES = ("torch", "triton", "executorch", "torchao", "transformers")


def publish(
    speculator: Eagle3Speculator, lengths: MethodLengths, chain_len: int, eos_ids: tuple[int, ...]
) -> Constants:
    """The constants of an artifact."""
    target, head = speculator.target, speculator.draft.config
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
        max_verify_window=lengths.max_verify_window,
        draft_vocab_size=head.draft_vocab_size,
        hidden_size=head.hidden_size,
        eos_ids=eos_ids,
    )


def describe(
    speculator: Eagle3Speculator,
    lengths: MethodLengths,
    constants: Constants,
    source: Source,
    directory: Path,
    *,
    backend: str,
    device: dict[str, str] | None,
    stages: list[Stage],
    self_test: dict[str, Any] | None = None,
) -> Manifest:
    """The manifest of the files that are in `directory`."""
    tokenizer = tokenizer_files(directory)
    files = sorted(directory.iterdir())
    return Manifest(
        schema_version=SCHEMA_VERSION,
        eagle_aot_version=__version__,
        versions={"python": platform.python_version(), **installed_versions()},
        backend=backend,
        device=device,
        load_format=source.load_format,
        target={
            "name": source.target_model,
            **identity(source.target_dir, source.load_format),
            "quantize": source.quantize,
        },
        draft={
            **identity(source.draft_dir, source.load_format),
            "quantize": source.draft_quant,
            "config": asdict(speculator.draft.config),
        },
        tap_layers=speculator.draft.config.tap_layers,
        chain_len=constants.chain_len,
        constants=constants.methods(),
        shapes={
            name: {"min_rows": method.min_rows, "max_rows": method.max_rows}
            for name, method in traced_methods(speculator, lengths).items()
        },
        stages=[asdict(stage) for stage in stages],
        self_test=self_test,
        tokenizer_sha256=sha256_of(tokenizer) if tokenizer else None,
        files={path.name: sha256_of([path]) for path in files},
    )


def identity(directory: Path | None, load_format: str) -> dict[str, Any]:
    """Directory name and hash over config and weights of a checkpoint; None for random weights."""
    if directory is None or load_format == "dummy":
        return {"directory": None, "sha256": None}
    files = [directory / "config.json", *HeadCheckpoint(directory).files()]
    return {"directory": directory.absolute().name, "sha256": sha256_of(files)}


def installed_versions() -> dict[str, str]:
    """Versions of the packages that decide what an export contains."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def copy_tokenizer(source: Source, directory: Path) -> None:
    """Put the target's tokenizer into the artifact."""
    for path in find_tokenizer(source):
        shutil.copyfile(path, directory / path.name)


def find_tokenizer(source: Source) -> list[Path]:
    """The target's tokenizer files; none for a dummy without a directory.

    Raises CheckpointError when the target's directory has no tokenizer.
    """
    if source.target_dir is None:
        return []
    files = tokenizer_files(source.target_dir)
    if not any(path.name.startswith("tokenizer.") for path in files):
        raise CheckpointError(f"{source.target_dir}: no tokenizer.json or tokenizer.model")
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
