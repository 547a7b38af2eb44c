"""An assistant on disk: its config.json, and the names of its tensors.

As transformers writes it (`Gemma4AssistantConfig`): the assistant's layers in `text_config`, the
target's width beside it. `Gemma4UnifiedAssistant` differs in names alone.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.gemma4_assistant.config import AssistantConfig, AssistantWiring
from eagle_aot.targets.checkpoint import read_json
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.gemma4.config import FULL, Gemma4Config
from eagle_aot.targets.step import MAX_CHAIN_LEN

MODEL_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
CLASSES = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
PROJECTIONS = ("pre_projection.weight", "post_projection.weight")

CENTROIDS, ORDERING = "masked_embedding.centroids.weight", "masked_embedding.token_ordering"
EMBEDDING, OUTPUT_TABLE = "model.embed_tokens.weight", "lm_head.weight"

READING = "draft_reading"
"""Our own section of config.json, for a pair whose self-test found another reading."""
OFFSETS = {"position_offset": (0, 1), "window_offset": (-1, 0, 1)}
LAYERS = "kv_layers"


@dataclass(frozen=True, kw_only=True, slots=True)
class AssistantFiles:
    """What an assistant's files say; `recognised_by` is what told its kind, `sources` what decided
    each part of its wiring."""

    checkpoint: HeadCheckpoint
    recognised_by: str
    config: AssistantConfig
    tied: bool
    sources: dict[str, str]

    @property
    def directory(self) -> Path:
        """Where it was read, for messages."""
        return self.checkpoint.directory

    def stored(self, name: str) -> str:
        """The checkpoint's name of one of the module's tensors."""
        if name == OUTPUT_TABLE:
            return EMBEDDING if self.tied else OUTPUT_TABLE
        return f"model.{name}" if name.startswith(("layers.", "norm.")) else name


def recognised_by(checkpoint: HeadCheckpoint) -> str | None:
    """What says that a checkpoint is an assistant; None for another."""
    config = checkpoint.config
    if (kind := config.values.get("model_type")) in MODEL_TYPES:
        return f"model_type {kind}"
    classes = config.texts("architectures") if config.has("architectures") else ()
    for name in classes:
        if name in CLASSES:
            return f"architectures {name}"
    if all(name in checkpoint for name in PROJECTIONS):
        return " and ".join(PROJECTIONS)
    return None


def read_files(checkpoint: HeadCheckpoint) -> AssistantFiles:
    """The config of an assistant, and how it was understood.

    Raises CheckpointError for one that contradicts itself, UnsupportedError for a checkpoint of
    another kind and for math that no published assistant has.
    """
    found, config = recognised_by(checkpoint), checkpoint.config
    if found is None:
        raise UnsupportedError(
            f"{checkpoint.directory}: no Gemma 4 assistant: neither model_type nor architectures "
            f"say so, nor has it {PROJECTIONS[0]}"
        )
    if config.has("quantization_config"):
        raise UnsupportedError(f"{config.where}: it is quantised; only plain weights load")
    wiring, sources = read_wiring(config)
    return AssistantFiles(
        checkpoint=checkpoint,
        recognised_by=found,
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
    """The assistant's own layers, all of which read keys and values that others have stored.

    The last one is full whatever `layer_types` say, as transformers has it.
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


def read_centroids(config: ConfigSection, checkpoint: HeadCheckpoint) -> tuple[int, int] | None:
    """(clusters, how many are scored), None for a dense head. Files of dense heads name them too,
    so the flag and the tensors decide, and must agree."""
    stated, there = config.flag("use_ordered_embeddings"), CENTROIDS in checkpoint
    if stated != there:
        raise CheckpointError(
            f"{config.where}: use_ordered_embeddings is {str(stated).lower()}, and {CENTROIDS} is "
            f"{'there' if there else 'missing'}"
        )
    if not there:
        return None
    count, top_k = config.count("num_centroids"), config.count("centroid_intermediate_top_k")
    vocab_size = config.section("text_config").count("vocab_size")
    if vocab_size % count or top_k > count:
        raise CheckpointError(
            f"{config.where}: {count} centroids, of which {top_k} are scored, for {vocab_size} ids"
        )
    return count, top_k


def read_wiring(config: ConfigSection) -> tuple[AssistantWiring, dict[str, str]]:
    """How the target is read, and what decided each part of that."""
    plain, section = AssistantWiring(), config.section(READING)
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
    known = {name: chosen.get(name, getattr(plain, name)) for name in sources}
    return AssistantWiring(**known), sources


def _offset(section: ConfigSection, name: str) -> int:
    value = section.values[name]
    if type(value) is not int or value not in OFFSETS[name]:
        known = ", ".join(map(str, OFFSETS[name]))
        raise CheckpointError(f"{section.where}: {READING}.{name} is {value!r}, known are {known}")
    return value


def _kv_layers(section: ConfigSection) -> tuple[int, ...]:
    value = section.values[LAYERS]
    if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
        raise CheckpointError(f"{section.where}: {READING}.{LAYERS} is no list of layers")
    return tuple(value)


def chain_len(directory: Path) -> int | None:
    """Drafts a round that generation_config.json proposes, where a step takes them."""
    path = directory / "generation_config.json"
    count = read_json(path).get("num_assistant_tokens") if path.is_file() else None
    return count if type(count) is int and 1 <= count <= MAX_CHAIN_LEN else None
