"""A GGUF file without a config.json: its metadata as config, stop ids and tokenizer.

transformers reads the config, from a directory with a link to the file and nothing else. It knows
fewer keys than llama.cpp; a key that could change the math is read here, or refused.
"""

import json
import tempfile
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.common.process import captured_stderr
from eagle_aot.targets.decoder.rope import LLAMA3, Rope
from eagle_aot.targets.weight_files.gguf_file import LLAMA, GgufFile, TokenType

COMPLETE = (LLAMA, "qwen2", "qwen3")
"""Architectures whose metadata holds everything that the math depends on."""
WAY_OUT = "put its model's config.json and tokenizer next to it, and name their directory"
EPSILON = "attention.layer_norm_rms_epsilon"
READ_KEYS = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    EPSILON, "rope.freq_base", "rope.dimension_count",
}  # fmt: skip
"""Keys of an architecture that become the config."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scale_linear": (0.0, 1.0),
    "rope.scaling.attn_factor": (0.0, 1.0),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scaling.finetuned": (True, False),
    "rope.scaling.type": ("none",),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
}
"""Values that change nothing; any other value, and any other key, is refused.

Source: llama.cpp `src/llama-arch.cpp` and `llama-model.cpp`, which takes a factor without a type as
linear."""
TOKENIZER = "tokenizer.ggml."
STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
STOP_TEXTS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<|eom_id|>", "<EOT>", "_<EOT>", "<|return|>", "<|call|>", "[EOT]", "[EOS]", "</s>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
}  # fmt: skip
"""Control tokens that end a text or a turn in every model that has them. Source: llama.cpp
`src/llama-vocab.cpp`, its list of end-of-generation tokens."""
LLAMA3_CONTEXT = 8192
"""Number of positions that the unscaled frequencies of every Llama 3 were trained on."""


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
        stop_ids = self.stop_ids  # checked before transformers warns of them
        config = self._from_transformers()
        equal_share = config["hidden_size"] // config["num_attention_heads"]
        config["head_dim"] = self._head_dim(config.get("head_dim") or equal_share)
        config["rope_parameters"] |= self._rope(config["rope_parameters"], config["head_dim"])
        if self.weights.architecture == LLAMA:
            config["attention_bias"] = any(n.endswith("q_proj.bias") for n in self.weights.names())
        return config | {"eos_token_id": stop_ids}

    @cached_property
    def stop_ids(self) -> list[int]:
        """Token ids at which a text, a turn or a message ends: those that the file names, and those
        of control tokens that are known to."""
        self._check_token_ids()
        named = [self.weights.field(f"{TOKENIZER}{key}") for key in STOP_KEYS]
        tokens = self.weights.field(f"{TOKENIZER}tokens") or ()
        types = self.weights.field(f"{TOKENIZER}token_type") or ()
        known_stops = [
            number
            for number, (token, kind) in enumerate(zip(tokens, types, strict=False))
            if kind == TokenType.CONTROL and token in STOP_TEXTS
        ]
        return list(dict.fromkeys(token for token in (*named, *known_stops) if token is not None))

    @cached_property
    def tokenizer_directory(self) -> Path:
        """A directory with tokenizer.json, its settings, template and generation_config.json."""
        if self.weights.field(f"{TOKENIZER}tokens") is None:
            raise CheckpointError(f"{self.path}: holds no tokenizer: {WAY_OUT}")
        from eagle_aot.targets.gguf_tokenizer import write_tokenizer  # imports tokenizers

        directory = Path(self._temporary.name) / "tokenizer"
        stops = json.dumps({"eos_token_id": self.stop_ids})
        write_tokenizer(self.weights, directory, WAY_OUT)
        (directory / "generation_config.json").write_text(stops)
        return directory

    def _from_transformers(self) -> dict[str, Any]:
        """Let transformers read the config from a directory that holds nothing but the file."""
        from transformers import AutoConfig  # slow to import

        directory = Path(self._temporary.name) / "file"
        directory.mkdir(exist_ok=True)
        link = directory / "model.gguf"
        if not link.is_symlink():
            link.symlink_to(self.path.absolute())
        try:
            with captured_stderr():
                config = AutoConfig.from_pretrained(
                    directory, gguf_file=link.name, local_files_only=True, trust_remote_code=False
                )
        except Exception as error:  # a different type for every kind of damage
            raise CheckpointError(f"{self.path}: config cannot be read ({error!r})") from error
        values: dict[str, Any] = config.to_dict()
        return values

    def _check(self) -> None:
        """Raise UnsupportedError for a model whose config cannot be made from the metadata."""
        architecture = self.weights.architecture
        if architecture not in COMPLETE:
            raise UnsupportedError(
                f"{self.path}: a GGUF of {architecture} does not say all of its geometry: {WAY_OUT}"
            )
        epsilon = f"{architecture}.{EPSILON}"
        if self.weights.field(epsilon) is None:  # which transformers would replace by a default
            raise CheckpointError(f"{self.path}: {epsilon} is missing: {WAY_OUT}")
        for name in self.weights.metadata_keys():
            key = name.removeprefix(f"{architecture}.")
            if key == name:
                continue
            value = self.weights.field(name)
            if key in READ_KEYS:
                if isinstance(value, list):
                    raise UnsupportedError(f"{self.path}: {name} is an array, one per layer, which "
                                           f"is not read: {WAY_OUT}")  # fmt: skip
                continue
            if not any(value == neutral for neutral in self._neutral(key)):
                raise UnsupportedError(f"{self.path}: {name} is {value}: {WAY_OUT}")

    def _check_token_ids(self) -> None:
        """Raise CheckpointError for a special token that the vocabulary does not have."""
        tokens = self.weights.field(f"{TOKENIZER}tokens")
        for name in self.weights.metadata_keys():
            if tokens is not None and name.startswith(TOKENIZER) and name.endswith("_token_id"):
                number = self.weights.field(name)
                if type(number) is not int or not 0 <= number < len(tokens):
                    raise CheckpointError(
                        f"{self.path}: {name} is {number!r}: there are {len(tokens)} tokens"
                    )

    def _neutral(self, key: str) -> tuple[Any, ...]:
        """Return the values of a key that change nothing."""
        architecture = self.weights.architecture
        if key == "attention.value_length":
            return (self.weights.field(f"{architecture}.attention.key_length"),)
        if key == "rope.scaling.original_context_length":  # of a scaling that has a type
            return (self.weights.field(f"{architecture}.{key}"),)
        return NEUTRAL.get(key, ())

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


def _close(plain: Tensor, factors: Tensor, scaled: Tensor) -> bool:
    """Whether `plain` frequencies divided by stored `factors` are the `scaled` ones, [D / 2]."""
    return plain.shape == factors.shape and torch.allclose(plain / factors, scaled, rtol=1e-4)
