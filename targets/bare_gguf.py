"""A GGUF file alone: the config, the stop ids and the tokenizer that it holds beside its weights.

transformers reads them, from a directory with a link to the file and nothing else. It knows fewer
keys than llama.cpp: those that would change the math are read here, or refused.
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
from eagle_aot.targets.weight_files.gguf_file import GgufFile
from eagle_aot.targets.weight_files.gguf_names import LLAMA

COMPLETE = (LLAMA, "qwen3")
"""Architectures whose files say all that the math depends on."""
WAY_OUT = "put its model's config.json and tokenizer beside it, and name their directory"
UNREAD = ("rope.scaling.type", "attention.sliding_window")
"""Keys of an architecture that no config here can follow from."""
STOPS = ("eos_token_id", "eot_token_id", "eom_token_id")
LLAMA3_CONTEXT = 8192
"""Positions that the unscaled frequencies of every Llama 3 were trained on."""
ADDS_BOS = ("llama3", "llama-v3", "llama-bpe")
"""Pre-tokenisers whose files need not say that a BOS comes first."""

Read = TypeVar("Read")


def read_bare(path: Path) -> "BareGguf":
    """What the file at `path` says, read once. Raises CheckpointError and UnsupportedError."""
    stat = path.stat()
    return _read_bare(path, stat.st_size, stat.st_mtime_ns)


@cache
def _read_bare(path: Path, size: int, changed: int) -> "BareGguf":
    return BareGguf(path)


class BareGguf:
    """One file. Its properties raise CheckpointError and UnsupportedError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = GgufFile(path)
        self._room = tempfile.TemporaryDirectory(prefix="gguf-")

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its config.json, as transformers would write it."""
        self._check()
        from transformers import AutoConfig  # slow to import

        config: dict[str, Any] = self._told("config", AutoConfig.from_pretrained).to_dict()
        config["head_dim"] = self._head_dim(config["head_dim"])
        config["rope_parameters"] |= self._rope(config["rope_parameters"], config["head_dim"])
        return config | {"eos_token_id": self.stop_ids}

    @cached_property
    def stop_ids(self) -> list[int]:
        """Ids at which a text, a turn or a message ends."""
        found = (self.weights.field(f"tokenizer.ggml.{name}") for name in STOPS)
        return list(dict.fromkeys(found_id for found_id in found if found_id is not None))

    @cached_property
    def tokenizer_directory(self) -> Path:
        """A directory with tokenizer.json, its settings, template and generation_config.json."""
        if self.weights.field("tokenizer.ggml.tokens") is None:
            raise CheckpointError(f"{self.path}: holds no tokenizer: {WAY_OUT}")
        from transformers import AutoTokenizer

        directory = Path(self._room.name) / "tokenizer"
        tokenizer = self._told("tokenizer", AutoTokenizer.from_pretrained, **self._bos())
        tokenizer.save_pretrained(directory)
        stops = json.dumps({"eos_token_id": self.stop_ids})
        (directory / "generation_config.json").write_text(stops)
        return directory

    def _told(self, what: str, read: Callable[..., Read], **options: bool) -> Read:
        """What transformers makes of the file, and of nothing beside it."""
        alone = Path(self._room.name) / "file"
        alone.mkdir(exist_ok=True)
        link = alone / "model.gguf"
        if not link.is_symlink():
            link.symlink_to(self.path.absolute())
        try:
            with held_stderr():
                return read(
                    alone,
                    gguf_file=link.name,
                    local_files_only=True,
                    trust_remote_code=False,
                    **options,
                )
        except Exception as error:  # a different type for every kind of damage
            raise CheckpointError(f"{self.path}: {what} cannot be read ({error!r})") from error

    def _check(self) -> None:
        """Raise UnsupportedError where a config could not say what the file means."""
        architecture = self.weights.architecture
        if architecture not in COMPLETE:
            raise UnsupportedError(
                f"{self.path}: a GGUF of {architecture} does not say all of its geometry: {WAY_OUT}"
            )
        for key in UNREAD:
            value = self.weights.field(f"{architecture}.{key}")
            if value not in (None, "none", 0):
                raise UnsupportedError(f"{self.path}: {architecture}.{key} is {value}: {WAY_OUT}")

    def _head_dim(self, told: int) -> int:
        """Elements of a head, all of which are rotated."""
        architecture = self.weights.architecture
        head_dim: int = self.weights.field(f"{architecture}.attention.key_length") or told
        turning = self.weights.field(f"{architecture}.rope.dimension_count") or head_dim
        if turning != head_dim:
            raise UnsupportedError(f"{self.path}: rotates {turning} of {head_dim} elements a head")
        return head_dim

    def _rope(self, told: dict[str, Any], head_dim: int) -> dict[str, Any]:
        """The parameters of Llama 3's scaling where the file has its table, which is all it has."""
        table = self.weights.rope_factors()
        if table is None:
            return {}
        plain = Rope(theta=told["rope_theta"])
        factor = float(table.max())
        scaled = Rope(theta=plain.theta, rope_type=LLAMA3, factor=factor, context=LLAMA3_CONTEXT)
        if not _close(plain.inv_freq(head_dim), table, scaled.inv_freq(head_dim)):
            raise UnsupportedError(
                f"{self.path}: its rotary frequencies are scaled as no Llama 3's: {WAY_OUT}"
            )
        return {
            "rope_type": LLAMA3,
            "factor": factor,
            "low_freq_factor": scaled.low_freq_factor,
            "high_freq_factor": scaled.high_freq_factor,
            "original_max_position_embeddings": LLAMA3_CONTEXT,
        }

    def _bos(self) -> dict[str, bool]:
        """What a tokenizer is told where the file leaves out what follows from its kind."""
        pre = self.weights.field("tokenizer.ggml.pre")
        silent = self.weights.field("tokenizer.ggml.add_bos_token") is None
        return {"add_bos_token": True} if silent and pre in ADDS_BOS else {}


def _close(plain: Tensor, factors: Tensor, scaled: Tensor) -> bool:
    """Whether frequencies divided by a stored table are the scaled ones."""
    return plain.shape == factors.shape and torch.allclose(plain / factors, scaled, rtol=1e-4)
