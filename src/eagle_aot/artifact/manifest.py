"""The manifest of an artifact, `manifest.json`, as typed models.

Its types, and its hashes of all other files, reveal damage and files of other artifacts.
"""

import json
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from eagle_aot.artifact.files import (
    ARTIFACT_FILES,
    MANIFEST,
    PROGRAM,
    FileRecord,
    file_records,
    leads_out,
    mismatch,
)
from eagle_aot.artifact.methods import DFLASH_BLOCK, LOSSLESS, constant_methods
from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.strict_json import read_object
from eagle_aot.common.structs import convert
from eagle_aot.common.text import gigabytes

SCHEMA_VERSION = 4
STATE = ".kv_cache.state"
"""How the names of buffers with recurrent states end."""


class Device(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The GPU that native code was compiled for; `cuda` is the version it was compiled with."""

    name: str
    compute_capability: str
    multiprocessors: int
    cuda: str


class CheckpointIdentity(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint directory's name and the files that were read there; None and no files for
    random weights.

    `commit` is that of a repository on the Hugging Face Hub, whose name `directory` then is; None,
    and not written, for other directories.
    """

    directory: str | None
    files: dict[str, FileRecord]
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")] | None = None


class TargetIdentity(CheckpointIdentity, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The target's checkpoint, and its name in the registry."""

    name: str


class RowRange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many rows a method takes of a sequence, both bounds inclusive, and how many lines of rows
    for each sequence of the caches."""

    min_rows: int
    max_rows: int
    lines: int = 1


class ImageInputs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How prompts hold images.

    `rows` are the limits that an image's rows may have, the default first; a row has `hidden_size`
    numbers and stands for `pooling` squared patches of `patch_size` pixels square. In the prompt
    the id `image_token` stands for each row, between `begin_token` and `end_token`; the program
    generates none of the ids in `never`. With `sees_whole` an image's rows see one another both
    ways; with `drafter_reads_images` the drafter's `draft_prefill` takes the rows as well.
    """

    rows: list[Annotated[int, Meta(gt=0)]]
    hidden_size: Annotated[int, Meta(gt=0)]
    patch_size: Annotated[int, Meta(gt=0)]
    pooling: Annotated[int, Meta(gt=0)]
    image_token: int
    begin_token: int
    end_token: int
    never: list[int]
    sees_whole: bool
    drafter_reads_images: bool


class Stage(Struct, frozen=True, forbid_unknown_fields=True):
    """A stage's time, the peak of host memory up to its end, and the peak of GPU memory within it.

    The figures of a stage in another process are that process's own.
    """

    name: str
    seconds: float
    host_peak_bytes: int
    gpu_peak_bytes: int


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an artifact comes from, what the export decided, and which files it has.

    `versions` are those of Python and of the packages that made it. `device` is None for a program
    that runs anywhere. `drafter` is the drafter's kind; `methods` are the program's, in the order
    of their use, and `caches` the buffers that they may write. `options` repeat the export;
    `decisions` follow from them. `constants` are what the program publishes, by method. `stages`
    record the export's time and memory. `self_test` is the result of the export's self-test, None
    if it was not run. `files` are the records of every other file of the artifact; its tokenizer is
    the target's own files if a runner reads them as transformers does, otherwise converted ones.
    `images` is None, and not written, if prompts contain only text.
    """

    schema_version: int
    eagle_aot_version: str
    versions: dict[str, str]
    backend: str
    device: Device | None
    drafter: str
    target: TargetIdentity
    draft: CheckpointIdentity
    options: dict[str, Any]
    decisions: dict[str, Any]
    constants: dict[str, bool | int | list[int]]
    methods: list[str]
    shapes: dict[str, RowRange]
    caches: list[str]
    stages: list[Stage]
    self_test: dict[str, Any] | None
    files: dict[str, FileRecord]
    images: ImageInputs | None = None

    @property
    def has_states(self) -> bool:
        """Whether layers of the target have recurrent states, which hold a text at one position."""
        return any(name.endswith(STATE) for name in self.caches)

    @property
    def screens_table(self) -> bool:
        """Whether `target_verify` takes an input that says whether only largest logits are read."""
        return self.options.get("table_quant") == LOSSLESS

    @property
    def max_batch_size(self) -> int:
        """How many sequences the caches hold."""
        return self._number("max_batch_size")

    @property
    def max_seq_len(self) -> int:
        return self._number("max_seq_len")

    def _number(self, constant: str) -> int:
        number = self.constants.get(constant_methods()[constant])
        if not isinstance(number, int):
            raise ArtifactError(f"{MANIFEST}: damaged (no {constant}): export again")
        return number

    def write(self, directory: Path) -> None:
        """Write `manifest.json` into `directory`. Raises ValueError for NaN and infinity."""
        text = json.dumps(self.to_json(), indent=2) + "\n"
        (directory / MANIFEST).write_text(text, encoding="utf-8")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON reads it back, with lists for tuples. Raises ValueError for NaN and
        infinity."""
        values: dict[str, Any] = json.loads(json.dumps(self, default=_written, allow_nan=False))
        return values

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
        """Read and check a manifest outside an artifact. Raises ArtifactError."""
        try:
            stored = read_object(path)
            version = convert(stored, Versioned).schema_version
            if version == SCHEMA_VERSION:
                if "drafters" in stored:
                    raise ArtifactError(
                        f"{path}: holds several drafters, which this version does not run: "
                        "export again with one --draft-dir, once for each drafter"
                    )
                return convert(stored, cls)
        except (OSError, ValueError) as error:  # msgspec's are ValueErrors
            raise ArtifactError(f"{path}: damaged ({error}): export again") from error
        newer = "install the eagle-aot that wrote it, or " if version > SCHEMA_VERSION else ""
        raise ArtifactError(
            f"{path}: schema version {version}, this runner reads {SCHEMA_VERSION}: "
            f"{newer}export again with this version"
        )

    def verify(self, directory: Path) -> None:
        """Raise ArtifactError unless the listed files are there, unchanged, and the only ones.

        Files that no runner reads may be in the directory as well.
        """
        for _, problem in self._mismatches(directory):  # before anything is read
            raise ArtifactError(f"{problem}: export again")
        for problem in self.problems(directory).values():
            raise ArtifactError(f"{problem}: export again")

    def problems(self, directory: Path) -> dict[str, str]:
        """Return what is wrong with files, by name, files that are not listed among them."""
        problems = dict(self._mismatches(directory))
        records = file_records(directory / name for name in self.files if name not in problems)
        changed = {
            name: f"{directory / name}: does not match its hash in {MANIFEST}"
            for name, record in records.items()
            if record != self.files[name]
        }
        return problems | changed

    def _mismatches(self, directory: Path) -> Iterator[tuple[str, str]]:
        """Yield the names and problems that need no file to be read."""
        for name in ARTIFACT_FILES:
            needed = name == PROGRAM or (directory / name).exists()
            if needed and name not in self.files:
                yield name, f"{directory / name}: not listed in {MANIFEST}"
        for name, record in self.files.items():
            if problem := mismatch(directory, name, record.bytes):
                yield name, problem


def _written(struct: Struct) -> dict[str, Any]:
    """Return the fields of a struct without those that are None by default."""
    unset = {f.name for f in structs.fields(struct) if f.default is None}
    values = structs.asdict(struct).items()
    return {name: value for name, value in values if value is not None or name not in unset}


class Versioned(Struct):
    """The field that manifests of all versions have."""

    schema_version: int


class CacheBytes(Struct, frozen=True, kw_only=True):
    """The memory of all caches, and of one sequence: in all, in the target's and the drafter's."""

    bytes: int
    bytes_of_a_sequence: int
    target_bytes_of_a_sequence: int
    draft_bytes_of_a_sequence: int

    @property
    def sequences(self) -> int:
        """How many sequences the caches hold."""
        return self.bytes // max(self.bytes_of_a_sequence, 1)

    @classmethod
    def of(cls, manifest: Manifest) -> "CacheBytes | None":
        """Read it from a manifest; None if the export did not record it."""
        try:
            return convert(manifest.decisions.get("caches"), cls)
        except msgspec.ValidationError:
            return None

    def to_json(self) -> dict[str, Any]:
        return structs.asdict(self)

    def fitting(self, free: int) -> int:
        """Return how many sequences' caches fit into `free` bytes."""
        return max(free, 0) // max(self.bytes_of_a_sequence, 1)

    def __str__(self) -> str:
        parts = self.target_bytes_of_a_sequence, self.draft_bytes_of_a_sequence
        target, draft = map(gigabytes, parts)
        return (
            f"a sequence takes {gigabytes(self.bytes_of_a_sequence)} of caches (target {target}, "
            f"drafter {draft}), all {self.sequences} of this artifact {gigabytes(self.bytes)}"
        )


def dflash_block_size(manifest: Manifest, method: str = DFLASH_BLOCK) -> int:
    """Return the rows of a DFlash head's block, which `method` runs, including the bonus token's.
    Raises ArtifactError if the manifest has no valid number."""
    most = manifest.shapes[method].max_rows if method in manifest.shapes else 0
    return head_size(manifest, "block_size", 2, most)


def head_size(manifest: Manifest, name: str, least: int, most: int) -> int:
    """Return a size of a draft head. Raises ArtifactError unless it is from `least` to `most`."""
    head = manifest.decisions.get("head")
    size = head.get(name) if isinstance(head, dict) else None
    if type(size) is not int or not least <= size <= most:
        raise ArtifactError(f"{MANIFEST}: damaged ({name} is {size!r}): export again")
    return size


def head_flag(manifest: Manifest, name: str) -> bool:
    """Return an option of a draft head. Raises ArtifactError unless it is true or false."""
    head = manifest.decisions.get("head")
    flag = head.get(name) if isinstance(head, dict) else None
    if not isinstance(flag, bool):
        raise ArtifactError(f"{MANIFEST}: damaged ({name} is {flag!r}): export again")
    return flag


def has_head_option(manifest: Manifest, name: str) -> bool:
    """Return whether a draft head has an option that is not null."""
    head = manifest.decisions.get("head")
    return isinstance(head, dict) and head.get(name) is not None


PACKAGES = ("torch", "triton", "executorch", "torchao", "transformers")
NOT_INSTALLED = "not installed"


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that make or run artifacts, without
    importing them."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED
