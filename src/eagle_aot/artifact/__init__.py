"""The contract between the export and the runner: methods, constants, files and the manifest.

An artifact is a directory that holds everything needed to run: `model.pte`, `model.ptd` where the
weights lie outside the program, `manifest.json`, and the tokenizer's files. Both sides import this
module and neither imports the other.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from eagle_aot.artifact.file_records import FileRecord, file_records
from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.strict_json import read_object

PREFILL = "prefill"
TARGET_VERIFY = "target_verify"
DRAFT_DECODE = "draft_decode"
METHODS = (PREFILL, TARGET_VERIFY, DRAFT_DECODE)

SCHEMA_VERSION = 4
MANIFEST = "manifest.json"
PROGRAM = "model.pte"
WEIGHTS = "model.ptd"
DRAFT_IDS = "draft_ids.safetensors"
"""`target_ids` int64 [Vd]: the target's id of each of the drafter's; not there where they are the
same."""
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
    without sliding layers; `max_rows` bounds the rows of a step over all its sequences, of which
    the caches hold `max_batch_size`; `tail` is how many tokens of its path a row names by slot;
    `flat_slots` are those of a sequence in a cache of all its positions;
    `eos_ids` stop generation.
    """

    max_seq_len: int
    vocab_size: int
    n_layers: int
    min_prefill_chunk: int
    max_prefill_chunk: int
    sliding_window: int
    chain_len: int
    max_rows: int
    max_batch_size: int
    tail: int
    flat_slots: int
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
    "schema_version": int,
    **dict.fromkeys(("eagle_aot_version", "backend"), str),
    **dict.fromkeys(("versions", "target", "draft", "options", "decisions"), dict),
    **dict.fromkeys(("constants", "shapes", "files"), dict),
    **dict.fromkeys(("device", "self_test"), dict | None),
    "stages": list,
}
"""What a stored manifest's fields must be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Where an artifact comes from, what was decided, and what it consists of.

    `versions` are those of Python and of the packages that made it. `device` is what a program with
    native code was compiled for (name, compute capability, multiprocessors, CUDA version), None
    where it runs anywhere. `target` and `draft` identify the checkpoints: name and directory name,
    and `files`, the record of each file that was read. `options` repeat the export, `decisions`
    are what followed from them. `stages` is what the export cost: per stage its name, seconds, and
    the peaks of host and GPU memory in bytes. `self_test` is what the export found about the pair
    on text, None where it was not asked. `files` are the records of every other file of the
    artifact; the tokenizer's are the target's own files, unchanged.
    """

    schema_version: int
    eagle_aot_version: str
    versions: dict[str, str]
    backend: str
    device: dict[str, str] | None
    target: dict[str, Any]
    draft: dict[str, Any]
    options: dict[str, Any]
    decisions: dict[str, Any]
    constants: dict[str, Any]
    shapes: dict[str, dict[str, Any]]
    stages: list[dict[str, Any]]
    self_test: dict[str, Any] | None
    files: dict[str, FileRecord]

    def write(self, directory: Path) -> None:
        """Write `manifest.json` into `directory`."""
        text = json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"
        (directory / MANIFEST).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read and check the manifest of an artifact.

        Raises ArtifactError when it is missing, unreadable, or of another schema version.
        """
        if not (directory / MANIFEST).is_file():
            raise ArtifactError(f"{directory}: not an artifact (no {MANIFEST})")
        if leads_out(directory, MANIFEST):
            raise ArtifactError(f"{directory / MANIFEST}: a link that leads out of the artifact")
        return cls.read_file(directory / MANIFEST)

    @classmethod
    def read_file(cls, path: Path) -> "Manifest":
        """Read and check a manifest, wherever it lies. Raises ArtifactError."""
        try:
            stored = read_object(path)
            version = stored["schema_version"]
            if type(version) is not int:
                raise ValueError("a schema version that is no number")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ArtifactError(f"{path}: damaged ({error!r}): export again") from error
        if version != SCHEMA_VERSION:
            raise ArtifactError(
                f"{path}: schema version {version}, this runner reads {SCHEMA_VERSION}: "
                "export again with this version"
            )
        names = {field.name for field in fields(cls)}
        if set(stored) != names or not all(isinstance(stored[n], k) for n, k in KINDS.items()):
            different = sorted(name[:LONGEST_NAME] for name in names ^ set(stored))[:5]
            raise ArtifactError(f"{path}: damaged (fields {different})")
        texts = [*stored["versions"].values(), *(stored["device"] or {}).values()]
        if not all(isinstance(text, str) and text.isprintable() for text in texts):
            raise ArtifactError(f"{path}: damaged (a version or device that is no text)")
        try:
            files = {name: FileRecord.parse(one) for name, one in stored["files"].items()}
        except ValueError as error:
            raise ArtifactError(f"{path}: damaged ({error}): export again") from error
        return cls(**stored | {"files": files})

    def verify(self, directory: Path) -> None:
        """Raise ArtifactError unless the listed files are there, unchanged, and the only ones.

        Other files in the directory are left alone, as long as nothing here would read them.
        """
        for _, problem in self._mismatches(directory):  # before anything is read
            raise ArtifactError(f"{problem}: export again")
        for problem in self.problems(directory).values():
            raise ArtifactError(f"{problem}: export again")

    def problems(self, directory: Path) -> dict[str, str]:
        """What is wrong with the artifact's files, by name; a file that is not listed may be."""
        problems = dict(self._mismatches(directory))
        found = file_records(directory / name for name in self.files if name not in problems)
        changed = {
            name: f"{directory / name}: does not match its hash in {MANIFEST}"
            for name, record in found.items()
            if record != self.files[name]
        }
        return problems | changed

    def _mismatches(self, directory: Path) -> Iterator[tuple[str, str]]:
        """Names and problems that need no file to be read."""
        if PROGRAM not in self.files:
            yield PROGRAM, f"{directory / MANIFEST}: lists no {PROGRAM}"
        for path in (*tokenizer_files(directory), directory / WEIGHTS):
            if path.exists() and path.name not in self.files:
                yield path.name, f"{path}: not listed in {MANIFEST}"
        for name, record in self.files.items():
            if problem := mismatch(directory, name, record.bytes):
                yield name, problem


def mismatch(directory: Path, name: str, size: int) -> str:
    """What is wrong with a file, without reading it; empty where nothing is."""
    if not is_plain(name):
        return f"{directory / MANIFEST}: {name[:LONGEST_NAME]!r} is not a plain file name"
    path = directory / name
    if leads_out(directory, name):
        return f"{path}: a link that leads out of the artifact"
    if not path.is_file():
        return f"{path}: missing"
    if (found := path.stat().st_size) != size:
        return f"{path}: has {found} bytes, {MANIFEST} says {size}"
    return ""


def is_plain(name: str) -> bool:
    """Whether a name stays in the directory that it is looked for in."""
    bare = name == os.path.basename(name) and name not in ("", ".", "..")
    return bare and name.isprintable() and len(name) <= LONGEST_NAME


def leads_out(directory: Path, name: str) -> bool:
    """Whether a file of `directory` is a link to somewhere else."""
    return os.path.dirname(os.path.realpath(directory / name)) != os.path.realpath(directory)


def tokenizer_files(directory: Path) -> list[Path]:
    """The tokenizer's files in a checkpoint or artifact directory."""
    return [directory / name for name in TOKENIZER_FILES if (directory / name).is_file()]
