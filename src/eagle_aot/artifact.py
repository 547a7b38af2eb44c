"""The contract between the export and the runner: methods, constants, files and the manifest.

An artifact is a directory that holds everything needed to run: `model.pte`, `model.ptd` where the
weights lie outside the program, `manifest.json`, and the tokenizer's files. Both sides import this
module and neither imports the other.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from eagle_aot.errors import ArtifactError

PREFILL = "prefill"
TARGET_VERIFY = "target_verify"
DRAFT_DECODE = "draft_decode"
METHODS = (PREFILL, TARGET_VERIFY, DRAFT_DECODE)

SCHEMA_VERSION = 3
MANIFEST = "manifest.json"
PROGRAM = "model.pte"
WEIGHTS = "model.ptd"
VERIFY_SLACK = 8
"""Flat cache slots beyond the context, so that a verify window can reach over its end."""
CACHE_MARK = ".kv_cache."
"""In the name of every buffer that a method may write, and of no other."""
LONGEST_NAME = 100  # of a file in an artifact
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """What the program publishes about itself, each as a constant method of the `.pte`.

    Lengths and sizes are counts of tokens, layers or elements; `sliding_window` is 0 for a target
    without sliding layers; `eos_ids` stop generation.
    """

    max_seq_len: int
    vocab_size: int
    n_layers: int
    min_prefill_chunk: int
    max_prefill_chunk: int
    sliding_window: int
    chain_len: int
    max_verify_window: int
    draft_vocab_size: int
    hidden_size: int
    eos_ids: tuple[int, ...]
    kv_cache: bool = True

    def methods(self) -> dict[str, Any]:
        """Constant method name -> value, as ExecuTorch stores it."""
        values = asdict(self)
        published = {method: values[name] for name, method in constant_methods().items()}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in published.items()}

    @classmethod
    def from_methods(cls, published: Mapping[str, Sequence[Any]]) -> "Constants":
        """Read them back from the outputs of the constant methods.

        Raises ArtifactError naming a constant that is missing or not the one value it should be.
        """
        values: dict[str, Any] = {}
        for name, method in constant_methods().items():
            outputs = published.get(method)
            if outputs is None or (name != "eos_ids" and len(outputs) != 1):
                raise ArtifactError(f"{PROGRAM}: constant {method} is missing: export again")
            values[name] = tuple(outputs) if name == "eos_ids" else outputs[0]
        return cls(**values)


def constant_methods() -> dict[str, str]:
    """Field of `Constants` -> name of its constant method."""
    names = {field.name: f"get_{field.name}" for field in fields(Constants)}
    return names | {"kv_cache": "use_kv_cache"}


KINDS: dict[str, Any] = {
    **dict.fromkeys(("eagle_aot_version", "backend", "load_format"), str),
    **dict.fromkeys(("versions", "target", "draft", "constants", "shapes", "files"), dict),
    **dict.fromkeys(("tap_layers", "stages"), list),
    **dict.fromkeys(("device", "self_test"), dict | None),
    "chain_len": int,
    "tokenizer_sha256": str | None,
}
"""What a stored manifest's fields must be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Where an artifact comes from and what it consists of.

    `target` and `draft` identify the checkpoints (name, directory name, sha256 over their files);
    `files` maps every other file of the artifact to its sha256; `tokenizer_sha256` is None for an
    artifact without a tokenizer. `device` is what a program with native code was compiled for
    (name, compute capability, multiprocessors), None where it runs anywhere. `stages` is what the
    export cost: per stage its name, seconds, and the peaks of host and GPU memory in bytes.
    `self_test` is what the export found about the pair on text, None where it was not asked.
    """

    schema_version: int
    eagle_aot_version: str
    versions: dict[str, str]
    backend: str
    device: dict[str, str] | None
    load_format: str
    target: dict[str, Any]
    draft: dict[str, Any]
    tap_layers: tuple[int, ...]
    chain_len: int
    constants: dict[str, Any]
    shapes: dict[str, dict[str, Any]]
    stages: list[dict[str, Any]]
    self_test: dict[str, Any] | None
    tokenizer_sha256: str | None
    files: dict[str, str]

    def write(self, directory: Path) -> None:
        """Write `manifest.json` into `directory`."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        (directory / MANIFEST).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read and check the manifest of an artifact.

        Raises ArtifactError when it is missing, unreadable, or of another schema version.
        """
        path = directory / MANIFEST
        if not path.is_file():
            raise ArtifactError(f"{directory}: not an artifact (no {MANIFEST})")
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            version = stored["schema_version"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ArtifactError(f"{path}: damaged ({error!r}): export again") from error
        if version != SCHEMA_VERSION:
            raise ArtifactError(
                f"{path}: schema version {version}, this runner reads {SCHEMA_VERSION}: "
                "export again with this version"
            )
        names = {field.name for field in fields(cls)}
        typed = all(isinstance(stored.get(name), kind) for name, kind in KINDS.items())
        texts = [*stored["versions"].values(), *(stored["device"] or {}).values()] if typed else []
        if set(stored) != names or not typed or not all(isinstance(t, str) for t in texts):
            raise ArtifactError(f"{path}: damaged (fields {sorted(names ^ set(stored))})")
        return cls(**stored | {"tap_layers": tuple(stored["tap_layers"])})

    def verify(self, directory: Path) -> None:
        """Raise ArtifactError unless the listed files are there, unchanged, and the only ones.

        Other files in the directory are left alone, as long as nothing here would read them.
        """
        if PROGRAM not in self.files:
            raise ArtifactError(f"{directory / MANIFEST}: lists no {PROGRAM}")
        tokenizer = tokenizer_files(directory)
        weights = directory / WEIGHTS
        for path in (*tokenizer, *([weights] if weights.exists() else [])):
            if path.name not in self.files:
                raise ArtifactError(f"{path}: not listed in {MANIFEST}: export again")
        for name, recorded in self.files.items():
            path = directory / name
            if Path(name).name != name or len(name) > LONGEST_NAME:
                shown = repr(name[:LONGEST_NAME])
                raise ArtifactError(f"{directory / MANIFEST}: {shown} is not a plain file name")
            if not path.is_file():
                raise ArtifactError(f"{path}: missing: export again")
            if sha256_of([path]) != recorded:
                raise ArtifactError(f"{path}: does not match its hash in {MANIFEST}: export again")
        if self.tokenizer_sha256 != (sha256_of(tokenizer) if tokenizer else None):
            raise ArtifactError(f"{directory}: the tokenizer does not match its hash in {MANIFEST}")


def tokenizer_files(directory: Path) -> list[Path]:
    """The tokenizer's files in a checkpoint or artifact directory."""
    return [directory / name for name in TOKENIZER_FILES if (directory / name).is_file()]


def sha256_of(paths: list[Path]) -> str:
    """One hash over the names and contents of files, in the order given."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            total.update(f"{path.name}\0".encode())
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
