"""A Hugging Face checkpoint directory, or a bare GGUF file, read one tensor at a time."""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, CheckpointNotFoundError
from eagle_aot.targets.checkpoint_path import (
    CONFIG,
    bare_gguf,
    is_checkpoint,
    text_ggufs,
    why_no_checkpoint,
)
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4.quantise import Scheme
from eagle_aot.targets.int4.weight import Int4Weight
from eagle_aot.targets.weight_files import TensorStorage, WeightFile, open_weight_file

if TYPE_CHECKING:
    from eagle_aot.targets.bare_gguf import BareGguf

INDEX = "model.safetensors.index.json"
BIN_INDEX = "pytorch_model.bin.index.json"
QUANT_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""Files on the quantization of weights alone, and the method of those that do not name it."""
BITS_KEYS = ("bits", "w_bit", "wbits")
GROUP_KEYS = ("group_size", "q_group_size")
"""Spellings of AutoGPTQ, AutoAWQ, GPTQModel and GPTQ-for-LLaMa."""
VERSION_KEYS = ("checkpoint_format", "format")
METHOD_KEYS = ("quant_method", "method")
MODULES, EXTRA = "dynamic", "extra_config"
"""What GPTQModel (by expressions) and auto-round (by names or expressions) say of modules."""
QUANT_FACTS = (
    *(METHOD_KEYS, BITS_KEYS, GROUP_KEYS, VERSION_KEYS),
    *((key,) for key in ("version", "backend", "packing_format", "is_marlin_format", "sym")),
    *((key,) for key in ("zero_point", "desc_act", "act_bits", "data_type", MODULES, EXTRA)),
    *((key,) for key in ("config_groups", "ignore", "kv_cache_scheme")),
)
"""What decides how quantized weights are read, each by the keys that it may have."""
WHOLE, WHOLE_BIN = "model.safetensors", "pytorch_model.bin"


class Checkpoint:
    """The config.json and the tensors of one directory, in one file or in shards.

    A GGUF file, or a directory with one and no config.json, is a checkpoint too; its config is made
    from the file's metadata. Safetensors and GGUF are read lazily, tensor by tensor.
    `pytorch_model.bin`, or its shards, are read if a directory has no safetensors, as a whole and
    with weights only (no code is executed). `quantise` is how to quantise decoder linears that are
    stored dense; None keeps them dense. Without `needs_weights`, weights may be missing.

    Raises CheckpointNotFoundError if the path, its config or its weights are missing,
    UnsupportedError for a GGUF with too little metadata, and CheckpointError if a file cannot be
    read or two shards hold the same tensor.
    """

    def __init__(
        self, directory: str | Path, quantise: Scheme | None = None, *, needs_weights: bool = True
    ) -> None:
        self.directory = Path(directory)
        self.quantise = quantise
        self.config = read_config(self.directory)
        self._file_of: dict[str, WeightFile] = {}
        try:
            files = self.files()
        except CheckpointNotFoundError:
            if needs_weights:
                raise
            files = []
        for path in files:
            self._index(path)

    @cached_property
    def quantization(self) -> ConfigSection:
        """The config's section on the quantisation of weights, as `read_quantization` finds it."""
        return read_quantization(self.directory, self.config)

    def files(self) -> list[Path]:
        """List the weight files, sorted by name."""
        return weight_files(self.directory)

    def names(self) -> Iterator[str]:
        return iter(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def tensor(self, name: str) -> Tensor:
        """Read one tensor [...] on the CPU, as stored. Raises CheckpointError if it is missing."""
        return self._file(name).tensor(name)

    def shape(self, name: str) -> torch.Size:
        """Return a tensor's shape without reading it. Raises CheckpointError if it is missing."""
        return self._file(name).shape(name)

    def storage(self, name: str) -> TensorStorage:
        """Return how a tensor is stored, without reading it. Raises CheckpointError."""
        return self._file(name).storage(name)

    def int4(self, name: str) -> Int4Weight | None:
        """Read one tensor as INT4; None if its file does not hold it so, or if it is missing."""
        return self._file(name).int4(name) if name in self else None

    def _file(self, name: str) -> WeightFile:
        if name not in self._file_of:
            raise CheckpointError(f"{self.directory}: tensor {name!r} is missing")
        return self._file_of[name]

    def _index(self, path: Path) -> None:
        is_bare = path == bare_gguf(self.directory)
        file = _bare(path).weights if is_bare else open_weight_file(path)
        for name in file.names():
            if name in self._file_of:
                raise CheckpointError(
                    f"{self.directory}: tensor {name!r} is in both "
                    f"{self._file_of[name].path.name} and {path.name}"
                )
            self._file_of[name] = file


def read_config(path: Path) -> ConfigSection:
    """Read the config of the checkpoint at `path`, whose weights may be missing."""
    bare = bare_gguf(path)
    if bare is not None:
        return ConfigSection(_bare(bare).config, bare)
    if not is_checkpoint(path):
        raise CheckpointNotFoundError(why_no_checkpoint(path))
    file = path / CONFIG
    return ConfigSection(read_json(file), file)


def read_quantization(directory: Path, config: ConfigSection) -> ConfigSection:
    """Return the section of a directory's config on the quantisation of weights; empty if it has
    none.

    Multimodal configs may have it in their text's section. compressed-tensors called it
    `compression_config` at first, and nests it in itself in addition to one on sparsity. AutoGPTQ
    and older AutoAWQ write it to files of their own. All places are read; what the first does not
    say is taken from the next. Raises CheckpointError if two contradict.
    """
    sections = _quantizations(directory, config)
    for other in sections[1:]:
        sections[0] = sections[0].with_facts_of(other, QUANT_FACTS)
    return sections[0] if sections else ConfigSection({}, config.where)


def _quantizations(directory: Path, whole: ConfigSection) -> list[ConfigSection]:
    """Return all sections on the quantization of weights that are not empty."""
    sections = []
    for config in (whole, whole.section("text_config")):
        for key in ("quantization_config", "compression_config"):
            section = config.section(key)
            nested = section.section("quantization_config").values
            where = Path(f"{section.where}: {key}.quantization_config")
            sections += [section, ConfigSection(nested, where)]
    sections = [section for section in sections if section.values]
    for name, method in QUANT_FILES.items():
        if (path := directory / name).is_file():
            default = {} if sections else {"quant_method": method}
            sections.append(ConfigSection(default | read_json(path), path))
    return sections


def tokenizer_directory(path: Path) -> Path:
    """Return the directory with a checkpoint's tokenizer; a bare GGUF's is written first."""
    bare = bare_gguf(path)
    return path if bare is None else _bare(bare).tokenizer_directory


def _bare(path: Path) -> "BareGguf":
    from eagle_aot.targets.bare_gguf import read_bare  # needs an optional dependency

    return read_bare(path)


def weight_files(directory: Path) -> list[Path]:
    """List the weight files of a checkpoint, sorted by name. Raises CheckpointNotFoundError."""
    if (bare := bare_gguf(directory)) is not None:
        return [bare]
    for find in (_whole_or_shards, _whole_bin, _any_safetensors, _bin_shards, text_ggufs):
        if files := find(directory):
            return files
    raise CheckpointNotFoundError(
        f"{directory}: no *.safetensors, no pytorch_model.bin and no *.gguf"
    )


def _whole_or_shards(directory: Path) -> list[Path]:
    """List model.safetensors or its shards; an index whose shards are all missing is a leftover if
    the whole file is there."""
    whole, index = directory / WHOLE, directory / INDEX
    if index.is_file():
        names = _named_by(index)
        if not whole.is_file() or any((directory / name).is_file() for name in names):
            return [shard(index, name) for name in names]
    return [whole] if whole.is_file() else []


def _whole_bin(directory: Path) -> list[Path]:
    return [whole] if (whole := directory / WHOLE_BIN).is_file() else []


def _any_safetensors(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


def _bin_shards(directory: Path) -> list[Path]:
    index = directory / BIN_INDEX
    return [shard(index, name, ".bin") for name in _named_by(index)] if index.is_file() else []


def _named_by(index: Path) -> list[str]:
    """List the shards that an index names, sorted."""
    shards = ConfigSection(read_json(index), index).section("weight_map")
    return sorted({shards.text(key) for key in shards.values})


def shard(index: Path, name: str, suffix: str = "") -> Path:
    """Return a file that an index names. Raises CheckpointNotFoundError if it is not there."""
    path = index.parent / name
    if Path(name).name != name or not name.endswith(suffix) or not path.is_file():
        raise CheckpointNotFoundError(f"{index}: shard {name!r} is missing")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises CheckpointNotFoundError or CheckpointError."""
    if not path.is_file():
        raise CheckpointNotFoundError(f"{path}: no such file")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return value
