"""The table of supported targets."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from eagle_aot.common.errors import SettingError, UnsupportedError
from eagle_aot.targets import llama, qwen3
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.tap_decoder import TapDecoder
from eagle_aot.targets.decoder.weights import fill_dummy
from eagle_aot.targets.gemma4 import (
    GEMMA4_12B,
    GEMMA4_31B,
    Gemma4Config,
    Gemma4Target,
    load_gemma4,
)
from eagle_aot.targets.gemma4.config import MODEL_TYPES as GEMMA4_MODEL_TYPES
from eagle_aot.targets.pre_norm.config import PreNormConfig
from eagle_aot.targets.pre_norm.model import PreNormDecoder
from eagle_aot.targets.protocol import TapTarget

TINY_DIR = Path(__file__).resolve().parent / "tiny"
SMOLLM2_HEAD = Path(__file__).resolve().parent / "smollm2" / "head"
DUMMY_GROUP_SIZE = 32
AUTO = "auto"
"""The target model name that selects a family by config.json."""

Loader = Callable[[Checkpoint, torch.dtype, CacheSpec], TapTarget]


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSpec:
    """A supported target.

    `load` reads a checkpoint. `dummy` builds the same geometry with random weights, with all layers
    or only the first few; it is None if only a checkpoint has the geometry. `target_dir` and
    `draft_dir` are checkpoints that ship with the package, None for those that the user brings.
    """

    name: str
    summary: str
    load: Loader
    dummy: Callable[[torch.dtype, CacheSpec, int | None], TapTarget] | None
    target_dir: Path | None = None
    draft_dir: Path | None = None
    default_max_seq_len: int = 4096


def load_target(
    path_or_name: str | Path,
    max_seq_len: int = 4096,
    dtype: torch.dtype = torch.float32,
    max_batch_size: int = 1,
) -> TapTarget:
    """Load a target on the host, by a checkpoint directory, a GGUF file or a shipped target's name.

    Weights, activations and caches have `dtype`; caches hold `max_batch_size` sequences of up to
    `max_seq_len` tokens. Raises SettingError for any other name, and the checkpoint's own errors.
    """
    caches = CacheSpec(max_seq_len, dtype, max_batch_size)
    spec = TARGETS.get(str(path_or_name))
    if spec is not None and spec.target_dir is not None:
        return spec.load(Checkpoint(spec.target_dir), dtype, caches)
    if not Path(path_or_name).exists():
        raise SettingError(
            f"{path_or_name}: neither a checkpoint directory nor a .gguf nor a shipped target "
            f"({', '.join(name for name, s in TARGETS.items() if s.target_dir)})"
        )
    return _load_any(Checkpoint(path_or_name), dtype, caches)


def get_target(name: str) -> TargetSpec:
    """Return the supported target called `name`.

    A `model_type` stands for every checkpoint of that type, and "auto" for every supported one.
    Raises SettingError, which lists the known names, and UnsupportedError for a refused target.
    """
    if name in REFUSED:
        raise UnsupportedError(f"{name} is not supported: {REFUSED[name]}")
    if name == AUTO or name in LOADERS:
        load = LOADERS.get(name, _load_any)
        return TargetSpec(name=name, summary="by config.json", load=load, dummy=None)
    if name not in TARGETS:
        raise SettingError(f"unknown target {name!r}; known targets: {', '.join(TARGETS)}")
    return TARGETS[name]


def model_type(checkpoint: Checkpoint) -> str:
    """Return a checkpoint's `model_type`. Raises UnsupportedError if no family here reads it."""
    name = checkpoint.config.text("model_type")
    if name not in LOADERS:
        reason = f" ({OTHER_MATH[name]})" if name in OTHER_MATH else ""
        raise UnsupportedError(
            f"{checkpoint.directory}: model_type {name!r}{reason}; known: {', '.join(LOADERS)}"
        )
    return name


def _load_any(checkpoint: Checkpoint, dtype: torch.dtype, caches: CacheSpec) -> TapTarget:
    return LOADERS[model_type(checkpoint)](checkpoint, dtype, caches)


Config = TypeVar("Config", Gemma4Config, PreNormConfig)


def _dummy(
    decoder: Callable[[Config, torch.dtype, CacheSpec], TapTarget],
    config: Config,
    dtype: torch.dtype,
    caches: CacheSpec,
    num_layers: int | None,
) -> TapTarget:
    if num_layers is not None and not 1 <= num_layers <= config.num_hidden_layers:
        raise SettingError(
            f"--dummy-layers {num_layers}: the target has {config.num_hidden_layers} layers"
        )
    config = replace(config, layer_types=config.layer_types[:num_layers])
    target = decoder(config, dtype, caches)
    assert isinstance(target, TapDecoder)
    fill_dummy(target, DUMMY_GROUP_SIZE, dtype)
    return target.eval()


def _dummy_tiny(dtype: torch.dtype, caches: CacheSpec, num_layers: int | None) -> TapTarget:
    config = Gemma4Config.from_hf(Checkpoint(TINY_DIR / "target").config)
    return _dummy(Gemma4Target, config, dtype, caches, num_layers)


def _user_target(
    name: str,
    checkpoint: str,
    config: Gemma4Config | PreNormConfig,
    load: Loader,
    head: Path | None = None,
) -> TargetSpec:
    """Make the entry of a target whose checkpoint the user brings; its `head` may ship."""
    if isinstance(config, Gemma4Config):
        dummy = partial(_dummy, Gemma4Target, config)
    else:
        dummy = partial(_dummy, PreNormDecoder, config)
    with_head = "" if head is None else "; its head ships with the package"
    summary = f"{checkpoint} (needs --target-dir{with_head})"
    return TargetSpec(name=name, summary=summary, load=load, dummy=dummy, draft_dir=head)


LOADERS: dict[str, Loader] = {
    **dict.fromkeys(GEMMA4_MODEL_TYPES, load_gemma4),
    qwen3.MODEL_TYPE: qwen3.load_qwen3,
    llama.MODEL_TYPE: llama.load_llama,
}
"""The loader of each `model_type` of a config.json."""

OTHER_MATH = {
    "qwen2": "its q, k and v have biases",
    "qwen3_moe": "its layers have experts",
    "mixtral": "its layers have experts",
    "llama4": "its layers have experts",
    "gpt_oss": "its layers have experts",
}
"""Model types close to the supported ones, and why they are not supported."""

REFUSED = {
    "gemma4-26b-a4b": "each token of each layer uses its own 8 of 128 experts, and there is no "
    "kernel for INT4 weights that are chosen per token; gemma4-12b and gemma4-31b are dense",
}
"""Targets that users may expect, and why they are not supported."""

TINY = TargetSpec(
    name="gemma4-tiny",
    summary="the shipped pair: a 6 million parameter Gemma 4 that solves arithmetic stories",
    load=load_gemma4,
    dummy=_dummy_tiny,
    target_dir=TINY_DIR / "target",
    draft_dir=TINY_DIR / "head",
    default_max_seq_len=1024,
)

_ALL = (
    TINY,
    _user_target("gemma4-31b", "google/gemma-4-31B-it", GEMMA4_31B, load_gemma4),
    _user_target("gemma4-12b", "google/gemma-4-12B-it", GEMMA4_12B, load_gemma4),
    _user_target("qwen3-0.6b", "Qwen/Qwen3-0.6B", qwen3.QWEN3_0_6B, qwen3.load_qwen3),
    _user_target("qwen3-1.7b", "Qwen/Qwen3-1.7B", qwen3.QWEN3_1_7B, qwen3.load_qwen3),
    _user_target("qwen3-4b", "Qwen/Qwen3-4B", qwen3.QWEN3_4B, qwen3.load_qwen3),
    _user_target("qwen3-8b", "Qwen/Qwen3-8B", qwen3.QWEN3_8B, qwen3.load_qwen3),
    _user_target("qwen3-14b", "Qwen/Qwen3-14B", qwen3.QWEN3_14B, qwen3.load_qwen3),
    _user_target("qwen3-32b", "Qwen/Qwen3-32B", qwen3.QWEN3_32B, qwen3.load_qwen3),
    _user_target("llama-3.2-1b", "meta-llama/Llama-3.2-1B", llama.LLAMA_3_2_1B, llama.load_llama),
    _user_target("llama-3.1-8b", "meta-llama/Llama-3.1-8B", llama.LLAMA_3_1_8B, llama.load_llama),
    _user_target(
        "smollm2-135m",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        llama.SMOLLM2_135M,
        llama.load_llama,
        SMOLLM2_HEAD,
    ),
    _user_target(
        "llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", llama.LLAMA_3_3_70B, llama.load_llama
    ),
)

TARGETS: dict[str, TargetSpec] = {spec.name: spec for spec in _ALL}
"""All supported targets by name, which `eagle-inspect targets` lists."""
