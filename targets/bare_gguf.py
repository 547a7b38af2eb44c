"""A GGUF file without a config.json: its metadata as config, stop ids and tokenizer.

transformers reads them, from a directory with a link to the file and nothing else. It knows fewer
keys than llama.cpp; the other keys that would change the math are read here, or refused.
"""

import json
import tempfile
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.common.process import held_stderr
from eagle_aot.targets.decoder.rope import LLAMA3, Rope
from eagle_aot.targets.weight_files.gguf_file import LLAMA, GgufFile

COMPLETE = (LLAMA, "qwen3")
"""Architectures whose metadata holds everything that the math depends on."""
WAY_OUT = "put its model's config.json and tokenizer next to it, and name their directory"
REFUSED_KEYS = ("rope.scaling.type", "attention.sliding_window")
"""Keys of an architecture that no config can be made from."""
STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
LLAMA3_CONTEXT = 8192
"""Number of positions that the unscaled frequencies of every Llama 3 were trained on."""
BOS_PRETOKENISERS = ("llama3", "llama-v3", "llama-bpe")
"""Pre-tokenisers that add a BOS token even if the file does not say so."""

Value = TypeVar("Value")


def read_bare(path: Path) -> "BareGguf":
    """Read the file at `path`, once. Raises CheckpointError and UnsupportedError."""
    stat = path.stat()
    return _read_bare(path, stat.st_size, stat.st_mtime_ns)


@cache
def _read_bare(path: Path, size: int, changed: int) -> "BareGguf":
    return BareGguf(path)


class BareGguf:
    """One GGUF file; its properties raise CheckpointError and UnsupportedError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = GgufFile(path)
        self._temporary = tempfile.TemporaryDirectory(prefix="gguf-")

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config.json that transformers would write for the model."""
        self._check()
        from transformers import AutoConfig  # slow to import

        read = self._from_transformers("config", AutoConfig.from_pretrained)
        config: dict[str, Any] = read.to_dict()
        config["head_dim"] = self._head_dim(config["head_dim"])
        config["rope_parameters"] |= self._rope(config["rope_parameters"], config["head_dim"])
        return config | {"eos_token_id": self.stop_ids}

    @cached_property
    def stop_ids(self) -> list[int]:
        """Token ids at which a text, a turn or a message ends."""
        ids = (self.weights.field(f"tokenizer.ggml.{key}") for key in STOP_KEYS)
        return list(dict.fromkeys(token for token in ids if token is not None))

    @cached_property
    def tokenizer_directory(self) -> Path:
        """A directory with tokenizer.json, its settings, template and generation_config.json."""
        if self.weights.field("tokenizer.ggml.tokens") is None:
            raise CheckpointError(f"{self.path}: holds no tokenizer: {WAY_OUT}")
        from transformers import AutoTokenizer

        directory = Path(self._temporary.name) / "tokenizer"
        tokenizer = self._from_transformers(
            "tokenizer", AutoTokenizer.from_pretrained, **self._bos()
        )
        tokenizer.save_pretrained(directory)
        stops = json.dumps({"eos_token_id": self.stop_ids})
        (directory / "generation_config.json").write_text(stops)
        return directory

    def _from_transformers(self, what: str, read: Callable[..., Value], **options: bool) -> Value:
        """Let transformers read `what` from a directory that holds nothing but the file."""
        directory = Path(self._temporary.name) / "file"
        directory.mkdir(exist_ok=True)
        link = directory / "model.gguf"
        if not link.is_symlink():
            link.symlink_to(self.path.absolute())
        try:
            with held_stderr():
                return read(
                    directory,
                    gguf_file=link.name,
                    local_files_only=True,
                    trust_remote_code=False,
                    **options,
                )
        except Exception as error:  # a different type for every kind of damage
            raise CheckpointError(f"{self.path}: {what} cannot be read ({error!r})") from error

    def _check(self) -> None:
        """Raise UnsupportedError for a model whose config cannot be made from the metadata."""
        architecture = self.weights.architecture
        if architecture not in COMPLETE:
            raise UnsupportedError(
                f"{self.path}: a GGUF of {architecture} does not say all of its geometry: {WAY_OUT}"
            )
        for key in REFUSED_KEYS:
            value = self.weights.field(f"{architecture}.{key}")
            if value not in (None, "none", 0):
                raise UnsupportedError(f"{self.path}: {architecture}.{key} is {value}: {WAY_OUT}")

    def _head_dim(self, default: int) -> int:
        """Return the head dimension; raises UnsupportedError for partly rotated heads."""
        architecture = self.weights.architecture
        head_dim: int = self.weights.field(f"{architecture}.attention.key_length") or default
        rotated = self.weights.field(f"{architecture}.rope.dimension_count") or head_dim
        if rotated != head_dim:
            raise UnsupportedError(
                f"{self.path}: rotates {rotated} of {head_dim} elements per head"
            )
        return head_dim

    def _rope(self, parameters: dict[str, Any], head_dim: int) -> dict[str, Any]:
        """Return the parameters of Llama 3's scaling; the file holds only their table."""
        table = self.weights.rope_factors()
        if table is None:
            return {}
        plain = Rope(theta=parameters["rope_theta"])
        factor = float(table.max())
        scaled = Rope(theta=plain.theta, rope_type=LLAMA3, factor=factor, context=LLAMA3_CONTEXT)
        if not _close(plain.inv_freq(head_dim), table, scaled.inv_freq(head_dim)):
            raise UnsupportedError(
                f"{self.path}: its rotary frequencies are not scaled like Llama 3's: {WAY_OUT}"
            )
        return {
            "rope_type": LLAMA3,
            "factor": factor,
            "low_freq_factor": scaled.low_freq_factor,
            "high_freq_factor": scaled.high_freq_factor,
            "original_max_position_embeddings": LLAMA3_CONTEXT,
        }

    def _bos(self) -> dict[str, bool]:
        """Return the option to add a BOS token, if only the pre-tokeniser implies it."""
        pretokeniser = self.weights.field("tokenizer.ggml.pre")
        is_unset = self.weights.field("tokenizer.ggml.add_bos_token") is None
        return {"add_bos_token": True} if is_unset and pretokeniser in BOS_PRETOKENISERS else {}


def _close(plain: Tensor, factors: Tensor, scaled: Tensor) -> bool:
    """Whether `plain` frequencies divided by stored `factors` are the `scaled` ones, [D / 2]."""
    return plain.shape == factors.shape and torch.allclose(plain / factors, scaled, rtol=1e-4)
