"""Read an assistant's checkpoint.

transformers writes it (`Gemma4AssistantConfig`): `text_config` describes the assistant's layers,
and `backbone_hidden_size` is the target's width. `Gemma4UnifiedAssistant` differs only in names.
Every tensor must be read, and every parameter filled.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.export.drafters.files import architectures, refuse_quantised
from eagle_aot.export.drafters.gemma4_assistant.model import (
    AssistantConfig,
    AssistantWiring,
    Centroids,
    Gemma4Assistant,
)
from eagle_aot.export.drafters.head_tensors import OUTPUT_TABLE
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint, read_json
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import assign, check_shape, read_tensor
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.gemma4.config import FULL, Gemma4Config
from eagle_aot.targets.step import MAX_CHAIN_LEN

MODEL_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
CLASSES = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
PROJECTIONS = ("pre_projection.weight", "post_projection.weight")

CENTROIDS, ORDERING = "masked_embedding.centroids.weight", "masked_embedding.token_ordering"
EMBEDDING = "model.embed_tokens.weight"
TARGET_NORM = "target_norm.weight"
"""The parameter that is the target's."""

READING = "draft_reading"
"""Our own section of config.json, for a pair whose self-test found another reading."""
OFFSETS = {"position_offset": (0, 1), "window_offset": (-1, 0, 1)}
LAYERS = "kv_layers"


@dataclass(frozen=True, kw_only=True, slots=True)
class AssistantFiles:
    """What an assistant's files say; `sources` has what decided each part of its wiring."""

    checkpoint: Checkpoint
    recognised_by: str
    config: AssistantConfig
    tied: bool
    sources: dict[str, str]

    @property
    def directory(self) -> Path:
        """The checkpoint's directory, for messages."""
        return self.checkpoint.directory

    def stored(self, name: str) -> str:
        """Return the checkpoint's name of one of the module's tensors."""
        if name == OUTPUT_TABLE:
            return EMBEDDING if self.tied else OUTPUT_TABLE
        return f"model.{name}" if name.startswith(("layers.", "norm.")) else name


def load_assistant(
    files: AssistantFiles, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> Gemma4Assistant:
    """Load an assistant on the host. Raises CheckpointError for damaged files and PairingError for
    another target."""
    checkpoint = files.checkpoint
    draft = Gemma4Assistant(files.config, target.num_hidden_layers, dtype, caches)
    draft.check_target(target)
    check_tensors(draft, files)
    for name, shape in parameter_shapes(draft).items():
        assign(draft, name, read_tensor(checkpoint, files.stored(name), shape, dtype))
    if isinstance(masked := draft.masked_embedding, Centroids):
        ordering = read_tensor(checkpoint, ORDERING, masked.cluster_of.shape, torch.int64)
        count = masked.centroids.out_features
        masked.cluster_of = clusters_of(ordering, count, str(files.directory))
    return with_target_norm(draft, target)


def with_target_norm(draft: Gemma4Assistant, target: TapTarget) -> Gemma4Assistant:
    """Return the assistant with the target's final norm; both use one tensor."""
    assert isinstance(target, Gemma4Target) and isinstance(target.norm.weight, nn.Parameter)
    draft.target_norm.weight, draft.target_norm.eps = target.norm.weight, target.norm.eps
    return draft.eval()


def check_tensors(draft: Gemma4Assistant, files: AssistantFiles) -> None:
    """Raise CheckpointError for wrong names and shapes, and for tied tables that differ; reads no
    other tensor, and `draft` may be meta."""
    checkpoint, shapes = files.checkpoint, parameter_shapes(draft)
    used = {files.stored(name) for name in shapes} | {ORDERING, EMBEDDING, OUTPUT_TABLE}
    unknown = sorted(name for name in checkpoint.names() if name not in used)
    if any(".k_proj." in name or ".v_proj." in name for name in unknown):
        raise CheckpointError(f"{files.directory}: {unknown[0]}: an assistant has only queries")
    if unknown:
        raise CheckpointError(f"{files.directory}: unknown tensors {', '.join(unknown[:5])}")
    for name, shape in shapes.items():
        check_shape(checkpoint, files.stored(name), checkpoint.shape(files.stored(name)), shape)
    if files.tied and OUTPUT_TABLE in checkpoint:
        tables = (checkpoint.tensor(name) for name in (OUTPUT_TABLE, EMBEDDING))
        if not torch.equal(*tables):
            raise CheckpointError(
                f"{files.directory}: config.json ties the tables, but {OUTPUT_TABLE} is another"
            )


def parameter_shapes(draft: Gemma4Assistant) -> dict[str, torch.Size]:
    """Return the shape of every parameter that is not the target's."""
    return {name: t.shape for name, t in draft.state_dict().items() if name != TARGET_NORM}


def clusters_of(ordering: Tensor, count: int, source: str) -> Tensor:
    """Return the cluster of every token, int64 [V], from `token_ordering` int64 [V], which has the
    V / C token ids of one cluster after another.

    Raises CheckpointError unless it has each token once.
    """
    vocab_size = len(ordering)
    if not torch.equal(ordering.sort().values, torch.arange(vocab_size)):
        raise CheckpointError(f"{source}: token_ordering does not name every token once")
    clusters = torch.empty_like(ordering)
    clusters[ordering] = torch.arange(vocab_size) // (vocab_size // count)
    return clusters


def recognise(checkpoint: Checkpoint) -> str | None:
    """Return what shows that a checkpoint is an assistant; None for other heads."""
    config = checkpoint.config
    if (kind := config.values.get("model_type")) in MODEL_TYPES:
        return f"model_type {kind}"
    for name in architectures(config):
        if name in CLASSES:
            return f"architectures {name}"
    if all(name in checkpoint for name in PROJECTIONS):
        return " and ".join(PROJECTIONS)
    return None


def read_files(checkpoint: Checkpoint) -> AssistantFiles:
    """Read an assistant's config.

    Raises CheckpointError for one that contradicts itself, UnsupportedError for another kind of
    head and for math that no published assistant has.
    """
    recognised_by, config = recognise(checkpoint), checkpoint.config
    if recognised_by is None:
        raise UnsupportedError(
            f"{checkpoint.directory}: no Gemma 4 assistant: neither model_type nor architectures "
            f"say so, nor has it {PROJECTIONS[0]}"
        )
    refuse_quantised(config)
    wiring, sources = read_wiring(config)
    return AssistantFiles(
        checkpoint=checkpoint,
        recognised_by=recognised_by,
        config=AssistantConfig(
            backbone_hidden_size=config.count("backbone_hidden_size"),
            text=read_text(config),
            centroids=read_centroids(config, checkpoint),
            wiring=wiring,
            default_chain_len=chain_len(checkpoint.directory),
        ),
        tied=config.flag("tie_word_embeddings", True),
        sources=sources,
    )


def read_text(config: ConfigSection) -> Gemma4Config:
    """Return the config of the assistant's layers, which read keys and values of the target.

    The last layer is a full one whatever `layer_types` says, as in transformers.
    """
    text = config.section("text_config")
    if not text.values:
        raise CheckpointError(f"{config.where}: no text_config")
    values = dict(text.values)
    shared = values.pop("num_kv_shared_layers", None)
    if shared not in (None, 0, values.get("num_hidden_layers")):
        raise UnsupportedError(
            f"{config.where}: num_kv_shared_layers is {shared}: an assistant whose layers store "
            "keys of their own is not supported"
        )
    if values.get("use_double_wide_mlp"):
        raise UnsupportedError(f"{config.where}: an assistant with double-wide MLPs")
    if isinstance(kinds := values.get("layer_types"), list) and kinds:
        values["layer_types"] = [*kinds[:-1], FULL]
    return Gemma4Config.from_hf(ConfigSection(values, config.where))


def read_centroids(config: ConfigSection, checkpoint: Checkpoint) -> tuple[int, int] | None:
    """Return the number of clusters and how many are scored; None for a dense head.

    Configs of dense heads have these numbers, too, so the flag and the tensors decide, and must
    agree.
    """
    flag, has_tensors = config.flag("use_ordered_embeddings"), CENTROIDS in checkpoint
    if flag != has_tensors:
        raise CheckpointError(
            f"{config.where}: use_ordered_embeddings is {str(flag).lower()}, and {CENTROIDS} is "
            f"{'there' if has_tensors else 'missing'}"
        )
    if not has_tensors:
        return None
    count, top_k = config.count("num_centroids"), config.count("centroid_intermediate_top_k")
    vocab_size = config.section("text_config").count("vocab_size")
    if vocab_size % count or top_k > count:
        raise CheckpointError(
            f"{config.where}: {top_k} of {count} centroids are scored for {vocab_size} ids"
        )
    return count, top_k


def read_wiring(config: ConfigSection) -> tuple[AssistantWiring, dict[str, str]]:
    """Return how the target is read, and what decided each part of it."""
    section = config.section(READING)
    sources = {
        "position_offset": "transformers' and mlx-vlm's: where the bonus token stands",
        "window_offset": "transformers'; vLLM and mlx-vlm see fewer keys",
        LAYERS: "the target's last layer of each kind",
    }
    if unknown := sorted(set(section.values) - set(sources)):
        raise CheckpointError(f"{config.where}: {READING} has an unknown key {unknown[0]!r}")
    chosen: dict[str, Any] = {}
    for name in section.values:
        chosen[name] = _kv_layers(section) if name == LAYERS else _offset(section, name)
        sources[name] = f"{READING}.{name} in config.json"
    return AssistantWiring(**chosen), sources


def _offset(section: ConfigSection, name: str) -> int:
    value = section.values[name]
    if type(value) is not int or value not in OFFSETS[name]:
        supported = ", ".join(map(str, OFFSETS[name]))
        key = f"{section.where}: {READING}.{name}"
        raise CheckpointError(f"{key} is {value!r}, known are {supported}")
    return value


def _kv_layers(section: ConfigSection) -> tuple[int, ...]:
    value = section.values[LAYERS]
    if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
        raise CheckpointError(f"{section.where}: {READING}.{LAYERS} is no list of layers")
    return tuple(value)


def chain_len(directory: Path) -> int | None:
    """Return the drafts per round that generation_config.json proposes; None if a step has no room
    for them."""
    path = directory / "generation_config.json"
    count = read_json(path).get("num_assistant_tokens") if path.is_file() else None
    return count if type(count) is int and 1 <= count <= MAX_CHAIN_LEN else None
