"""The table of supported targets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eagle_aot.common.errors import SettingError, UnsupportedError
from eagle_aot.common.text import nearest
from eagle_aot.targets.checkpoint import Checkpoint, read_config, read_quantization
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.tap_decoder import TapDecoder
from eagle_aot.targets.decoder.weights import LinearFormats, fill_dummy, int4_layers
from eagle_aot.targets.family import TINY_DIR, Family, Loader, Published
from eagle_aot.targets.gemma4 import GEMMA4, Gemma4Config, load_gemma4
from eagle_aot.targets.hub import PUBLIC_PAIRS, PublicPair
from eagle_aot.targets.linear_formats import has_own_table, linear_formats, matrices_of
from eagle_aot.targets.llama import LLAMA, MISTRAL
from eagle_aot.targets.phi3 import PHI3
from eagle_aot.targets.protocol import TapTarget
from eagle_aot.targets.qwen import QWEN2, QWEN3
from eagle_aot.targets.qwen3_5 import QWEN3_5
from eagle_aot.targets.qwen3_moe import QWEN3_MOE

AUTO = "auto"
"""The target model name that selects a family by config.json."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSpec:
    """A supported target.

    `load` reads a checkpoint. `dummy` builds the same geometry with random weights, with all layers
    or only the first few; it is None if only a checkpoint has the geometry. `target_dir` and
    `draft_dir` are checkpoints that ship with the package. `repository` has the target and `heads`
    those published for it, by kind, the default one first; both are on the Hugging Face Hub.
    `is_int4` says whether the repository's linears are INT4, `has_mtp` whether it has an MTP layer,
    which is the default drafter then.
    """

    name: str
    summary: str
    load: Loader
    dummy: Callable[[torch.dtype, CacheSpec, int | None], TapTarget] | None
    target_dir: Path | None = None
    draft_dir: Path | None = None
    repository: str | None = None
    checkpoint: str | None = None
    heads: Mapping[str, str] = field(default_factory=dict)
    is_int4: bool = False
    has_experts: bool = False
    has_mtp: bool = False
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
    Raises SettingError, which lists the known names.
    """
    if name == AUTO or name in LOADERS:
        load = LOADERS.get(name, _load_any)
        return TargetSpec(name=name, summary="by config.json", load=load, dummy=None)
    if name not in TARGETS:
        raise SettingError(
            f"unknown target {name!r}{nearest(name, TARGETS) or ';'} known targets: "
            f"{', '.join(TARGETS)}; or name a repository, ORG/NAME, a directory or a .gguf file"
        )
    return TARGETS[name]


def is_registered(name: str) -> bool:
    """Whether `get_target` knows the name."""
    return name in TARGETS or name in LOADERS or name == AUTO


def name_of_repository(repository: str) -> str:
    """Return the registered target of a repository on the Hub, "auto" if there is none.

    The Hub ignores the case of names.
    """
    for name, spec in TARGETS.items():
        if repository.lower() in (str(spec.repository).lower(), str(spec.checkpoint).lower()):
            return name
    return AUTO


def model_type(config: ConfigSection) -> str:
    """Return a config's `model_type`. Raises UnsupportedError if no family here reads it."""
    name = config.text("model_type")
    if name not in LOADERS:
        reason = f" ({OTHER_MATH[name]})" if name in OTHER_MATH else ""
        raise UnsupportedError(
            f"{config.where}: model_type {name!r}{reason}; known: {', '.join(LOADERS)}"
        )
    return name


def target_of(directory: Path, group_size: int | None = None) -> TargetSpec:
    """Return the target of the checkpoint in a directory, whose weights may be missing.

    Its dummy has the geometry of the config and the formats of its linears; with `group_size`,
    dense ones are INT4 in such groups. Raises CheckpointError and UnsupportedError.
    """
    config = read_config(directory)
    name = model_type(config)
    family = FAMILY_OF[name]
    matrices = matrices_of(directory)
    formats = linear_formats(read_quantization(directory, config), matrices, group_size)
    untied = {"tie_word_embeddings": False} if has_own_table(matrices) else {}

    def dummy(dtype: torch.dtype, caches: CacheSpec, num_layers: int | None) -> TapTarget:
        geometry = replace(family.read_config(config, caches.max_seq_len), **untied)
        return _dummy(family, geometry, dtype, caches, num_layers, formats)

    return TargetSpec(name=name, summary="by config.json", load=family.load, dummy=dummy)


def has_experts(config: ConfigSection) -> bool:
    """Whether the layers of a target with this config have experts."""
    text = config.section("text_config") if config.has("text_config") else config
    return text.flag("enable_moe_block") or text.text("model_type", "") in QWEN3_MOE.model_types


def _load_any(checkpoint: Checkpoint, dtype: torch.dtype, caches: CacheSpec) -> TapTarget:
    return LOADERS[model_type(checkpoint.config)](checkpoint, dtype, caches)


def _dummy(
    family: Family,
    config: Any,
    dtype: torch.dtype,
    caches: CacheSpec,
    num_layers: int | None,
    formats: LinearFormats = int4_layers,
) -> TapTarget:
    if num_layers is not None and not 1 <= num_layers <= config.num_hidden_layers:
        raise SettingError(
            f"--dummy-layers {num_layers}: the target has {config.num_hidden_layers} layers"
        )
    config = replace(config, layer_types=config.layer_types[:num_layers])
    target = family.decoder(config, dtype, caches)
    assert isinstance(target, TapDecoder)
    fill_dummy(target, formats, dtype)
    return target.eval()


def _dummy_tiny(dtype: torch.dtype, caches: CacheSpec, num_layers: int | None) -> TapTarget:
    config = Gemma4Config.from_hf(Checkpoint(TINY_DIR / "target").config)
    return _dummy(GEMMA4, config, dtype, caches, num_layers)


def _target_spec(family: Family, published: Published) -> TargetSpec:
    """Make the entry of a target on the Hub; its head may ship with the package."""
    pair = PUBLIC_PAIRS.get(published.name, PublicPair(published.checkpoint))
    heads = ", ".join(f"{kind} {repository}" for kind, repository in pair.heads.items())
    if published.head is not None:
        heads = "its head ships with the package"
    elif family.has_mtp:
        heads = ", ".join(filter(None, ("its own MTP layer", heads)))
    return TargetSpec(
        name=published.name,
        summary=f"{pair.target}; {heads or 'no public head: ngram will draft'}",
        load=family.load,
        dummy=partial(_dummy, family, published.config),
        draft_dir=published.head,
        repository=pair.target,
        checkpoint=published.checkpoint,
        heads=pair.heads,
        is_int4=pair.is_int4,
        has_experts=getattr(published.config, "experts", None) is not None,
        has_mtp=family.has_mtp,
    )


OTHER_MATH = {
    "olmo2": "its norms follow the branches, and q and k are normalised over all heads",
    "exaone4": "its norms follow the branches, and full layers have no rotary embedding",
    "exaone": "its tensors have names of their own",
    "qwen2_moe": "its layers have experts",
    "mixtral": "its layers have experts",
    "llama4": "its layers have experts",
    "gpt_oss": "its layers have experts",
}
"""Model types close to the supported ones, and why they are not supported."""

FAMILIES = GEMMA4, QWEN3, QWEN3_MOE, QWEN3_5, QWEN2, LLAMA, MISTRAL, PHI3
FAMILY_OF = {name: family for family in FAMILIES for name in family.model_types}
LOADERS: dict[str, Loader] = {name: family.load for name, family in FAMILY_OF.items()}
"""The loader of each `model_type` of a config.json."""

TINY = TargetSpec(
    name="gemma4-tiny",
    summary="the shipped pair: a 6 million parameter Gemma 4 that solves arithmetic stories",
    load=load_gemma4,
    dummy=_dummy_tiny,
    target_dir=TINY_DIR / "target",
    draft_dir=TINY_DIR / "head",
    default_max_seq_len=1024,
)

TARGETS: dict[str, TargetSpec] = {TINY.name: TINY} | {
    published.name: _target_spec(family, published)
    for family in FAMILIES
    for published in family.published
}
"""All supported targets by name, which `eagle-inspect targets` lists."""
