"""What the directories of a pair contain apart from weights: tokenizer, stop ids and hashes."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from eagle_aot.artifact import CheckpointIdentity, file_records, tokenizer_files
from eagle_aot.common.errors import ArtifactError, CheckpointError
from eagle_aot.common.hub import Repository
from eagle_aot.common.image_settings import ImageSettings, processor_file, read_settings
from eagle_aot.common.tokenizer import Tokenizer, read_tokenizer
from eagle_aot.common.tokenizer_probe import check_tokenizer
from eagle_aot.export.loading.tokenizer import convert_tokenizer, is_readable_as, write_tokenizer
from eagle_aot.targets.checkpoint import (
    BIN_INDEX,
    INDEX,
    QUANT_FILES,
    read_config,
    read_json,
    tokenizer_directory,
    weight_files,
)
from eagle_aot.targets.checkpoint_path import bare_gguf, is_checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.images import SOFT_TOKENS

GENERATION_CONFIG = "generation_config.json"
SIDE_FILES = ("config.json", *QUANT_FILES, INDEX, BIN_INDEX)
"""Files of a checkpoint that are recorded in addition to its weights and tokenizer."""

NO_CHECKPOINT = CheckpointIdentity(directory=None, files={})
"""The identity of random weights."""


class Provenance:
    """Reads both directories of a pair.

    Each file is read once, on first use. Hashing reads every byte; the rest is fast. A dummy
    may have a target's directory, for its tokenizer.
    """

    def __init__(self, target_dir: Path | None, draft_dir: Path | None, is_dummy: bool) -> None:
        self.target_dir, self.draft_dir, self.is_dummy = target_dir, draft_dir, is_dummy

    @cached_property
    def _tokenizer_dir(self) -> Path | None:
        """The directory of the tokenizer. Raises CheckpointError as `check_tokenizer` does."""
        if self.target_dir is None:
            return None
        directory = tokenizer_directory(self.target_dir)
        try:
            check_tokenizer(directory)
        except ArtifactError as error:
            raise CheckpointError(str(error)) from error
        return directory

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that stop generation, as `read_eos_ids` finds them. Raises CheckpointError as
        `check_tokenizer` does."""
        if self.target_dir is not None and bare_gguf(self.target_dir) is None:
            _ = self._tokenizer_dir  # which is checked before it is read
        return read_eos_ids(self.target_dir, lambda: self.tokenizer)

    @cached_property
    def tokenizer_files(self) -> list[Path]:
        """The files of the artifact's tokenizer: the target's own if a runner reads them as
        transformers does, otherwise converted ones. Raises CheckpointError as `tokenizer` does."""
        files = find_tokenizer(self._tokenizer_dir)
        if self._tokenizer_dir is None or is_readable_as(self.tokenizer, self._tokenizer_dir):
            return files
        directory = Path(self._converted.name)
        write_tokenizer(self.tokenizer, directory)
        generation = [path for path in files if path.name == GENERATION_CONFIG]
        return [*tokenizer_files(directory), *generation]

    @cached_property
    def _converted(self) -> "tempfile.TemporaryDirectory[str]":
        return tempfile.TemporaryDirectory(prefix="tokenizer-")

    @cached_property
    def processor_file(self) -> Path | None:
        """The file with the settings of the image processor; None for transformers' defaults."""
        return None if self._tokenizer_dir is None else processor_file(self._tokenizer_dir)

    @cached_property
    def image_tokens(self) -> int:
        """Default maximum number of rows of an image. Raises CheckpointError for a number that no
        model supports."""
        rows = self._processor.max_soft_tokens
        if rows not in SOFT_TOKENS:
            supported = ", ".join(map(str, SOFT_TOKENS))
            raise CheckpointError(f"{self.processor_file}: max_soft_tokens {rows}, not {supported}")
        return rows

    @cached_property
    def _processor(self) -> ImageSettings:
        try:
            return read_settings(self.processor_file)
        except ArtifactError as error:
            raise CheckpointError(str(error)) from error

    def check_processor(self, patch_size: int, pooling: int) -> None:
        """Raise CheckpointError unless the image processor makes patches for this encoder."""
        processor = self._processor
        if (processor.patch_size, processor.pooling_kernel_size) != (patch_size, pooling):
            raise CheckpointError(
                f"{self.processor_file}: patches of {processor.patch_size} pixels, pooled by "
                f"{processor.pooling_kernel_size}, but config.json says {patch_size} and {pooling}"
            )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer, converted for a runner. Raises ArtifactError for a dummy without
        one, and CheckpointError as `convert_tokenizer` does."""
        if self._tokenizer_dir is None:
            raise ArtifactError("a dummy has no tokenizer: give token ids instead of text")
        return convert_tokenizer(self._tokenizer_dir)

    @cached_property
    def target(self) -> CheckpointIdentity:
        """The name and files of the target's checkpoint."""
        return identity(None if self.is_dummy else self.target_dir)

    @cached_property
    def draft(self) -> CheckpointIdentity:
        """The name and files of the drafter's checkpoint, none if it is the target's own."""
        is_own = self.draft_dir == self.target_dir
        return identity(None if self.is_dummy or is_own else self.draft_dir)

    def check_tokenizer(self) -> None:
        """Raise CheckpointError unless an artifact can contain the target's tokenizer."""
        _ = self.tokenizer_files

    def copy_processor(self, directory: Path) -> None:
        """Copy the settings of the image processor to an artifact, if there are any."""
        if (path := self.processor_file) is not None:
            shutil.copyfile(path, directory / path.name)

    def copy_tokenizer(self, directory: Path) -> None:
        """Copy the tokenizer's files to an artifact."""
        for path in self.tokenizer_files:
            shutil.copyfile(path, directory / path.name)


def identity(directory: Path | None) -> CheckpointIdentity:
    """Return the name of a checkpoint's directory, or its repository and commit, and the records of
    its config, indices and weights.

    A target's tokenizer is in the artifact, so it is not recorded here.
    """
    if directory is None:
        return NO_CHECKPOINT
    configs = [directory / name for name in SIDE_FILES if (directory / name).is_file()]
    files = file_records([*configs, *weight_files(directory)])
    repository = Repository.of_path(directory)
    if repository is None:
        return CheckpointIdentity(directory=directory.absolute().name, files=files)
    name = str(replace(repository, revision=None))
    return CheckpointIdentity(directory=name, files=files, commit=repository.revision)


def find_tokenizer(target_dir: Path | None) -> list[Path]:
    """Return the target's tokenizer files, none for a dummy without a directory.

    Raises CheckpointError when the target's directory has no tokenizer.
    """
    if target_dir is None:
        return []
    if not has_tokenizer(target_dir):
        raise CheckpointError(f"{target_dir}: no tokenizer.json or tokenizer.model")
    return tokenizer_files(target_dir)


def has_tokenizer(directory: Path) -> bool:
    """Return whether a directory has a vocabulary."""
    return any(path.name.startswith("tokenizer.") for path in tokenizer_files(directory))


def read_eos_ids(
    target_dir: Path | None, convert: Callable[[], Tokenizer] | None = None
) -> tuple[int, ...]:
    """Return the ids that end a text: those of `generation_config.json`, else of the config, and
    the tokenizer's EOS token, at which vLLM and SGLang end it too. May be empty.

    `convert` returns the tokenizer; without it the directory's is read.

    Raises CheckpointError for something other than an id or a list of ids.
    """
    if target_dir is None:
        return ()
    ids = (*configured_eos_ids(target_dir), *_tokenizer_eos_ids(target_dir, convert))
    return tuple(dict.fromkeys(ids))


def _tokenizer_eos_ids(
    target_dir: Path, convert: Callable[[], Tokenizer] | None
) -> tuple[int, ...]:
    if bare_gguf(target_dir) is not None or not has_tokenizer(target_dir):
        return ()  # a GGUF's config names all of its stop ids
    tokenizer = _read_or_convert(target_dir) if convert is None else convert()
    eos = tokenizer.special_tokens.get("eos_token")
    token_id = None if eos is None else tokenizer.backend.token_to_id(eos)
    return () if token_id is None else (token_id,)


def _read_or_convert(directory: Path) -> Tokenizer:
    """Return a tokenizer as a runner reads it, or else as transformers does."""
    try:
        return read_tokenizer(directory)
    except ArtifactError:
        return convert_tokenizer(directory)


def configured_eos_ids(target_dir: Path) -> tuple[int, ...]:
    """Return the stop ids of `generation_config.json`, else of the config. Raises CheckpointError
    for something other than an id or a list of ids."""
    for config in _stop_configs(target_dir):
        nested = config.section("text_config").values.get("eos_token_id")
        value = config.values.get("eos_token_id", nested)
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(type(i) is int and i >= 0 for i in ids):
            raise CheckpointError(
                f"{config.where}: eos_token_id {value!r} is not a list of token ids"
            )
        return tuple(ids)
    return ()


def _stop_configs(target_dir: Path) -> list[ConfigSection]:
    """Return the configs that may name stop ids; the first one that does decides."""
    configs = [read_config(target_dir)] if is_checkpoint(target_dir) else []
    generation = target_dir / GENERATION_CONFIG
    if bare_gguf(target_dir) is None and generation.is_file():
        configs.insert(0, ConfigSection(read_json(generation), generation))
    return configs
