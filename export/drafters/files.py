"""A head's checkpoint: weight files of targets, or pickled shards."""

from pathlib import Path

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint, read_json, shard, weight_files
from eagle_aot.targets.config_section import ConfigSection

BIN_INDEX = "pytorch_model.bin.index.json"


class HeadCheckpoint(Checkpoint):
    """A checkpoint that may also consist of `pytorch_model-*.bin` shards with an index.

    SafeAILab's loader reads `pytorch_model.bin` (EAGLE, `ea_model.py`); transformers shards it.
    Safetensors are preferred if a directory has both.
    """

    def files(self) -> list[Path]:
        """Return the weight files, sorted by name."""
        return head_files(self.directory)


def head_files(directory: Path) -> list[Path]:
    """Return the weight files without opening them. Raises CheckpointNotFoundError."""
    index = directory / BIN_INDEX
    if not index.is_file() or any(directory.glob("*.safetensors")):
        return weight_files(directory)
    shards = ConfigSection(read_json(index), index).section("weight_map")
    names = sorted({shards.text(key) for key in shards.values})
    return [shard(directory, name, BIN_INDEX, ".bin") for name in names]


def architectures(config: ConfigSection) -> tuple[str, ...]:
    """Return the class names in a config.json, none if it has no such key."""
    return config.texts("architectures") if config.has("architectures") else ()


def refuse_quantised(config: ConfigSection) -> None:
    """Raise UnsupportedError for a head whose weights are quantised."""
    if config.has("quantization_config"):
        raise UnsupportedError(f"{config.where}: the head is quantised; only plain weights load")
