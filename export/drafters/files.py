"""A drafter's weight files: what targets come in, and pickled shards."""

from pathlib import Path

from eagle_aot.targets.checkpoint import Checkpoint, read_json, shard, weight_files
from eagle_aot.targets.config_section import ConfigSection

BIN_INDEX = "pytorch_model.bin.index.json"


class HeadCheckpoint(Checkpoint):
    """A checkpoint that may also lie in `pytorch_model-*.bin` shards beside their index.

    SafeAILab's loader reads `pytorch_model.bin` (EAGLE, `ea_model.py`); transformers shards it.
    Safetensors are preferred where a directory holds both.
    """

    def files(self) -> list[Path]:
        """The weight files, in the order of their names."""
        return head_files(self.directory)


def head_files(directory: Path) -> list[Path]:
    """The same without opening them. Raises CheckpointNotFoundError."""
    index = directory / BIN_INDEX
    if not index.is_file() or any(directory.glob("*.safetensors")):
        return weight_files(directory)
    shards = ConfigSection(read_json(index), index).section("weight_map")
    names = sorted({shards.text(key) for key in shards.values})
    return [shard(directory, name, BIN_INDEX, ".bin") for name in names]
