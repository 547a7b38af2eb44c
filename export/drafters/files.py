"""A head's weight files: what targets come in, and pickled shards."""

from pathlib import Path

from eagle_aot.common.errors import CheckpointNotFoundError
from eagle_aot.targets.checkpoint import Checkpoint, read_json
from eagle_aot.targets.config_section import ConfigSection

BIN_INDEX = "pytorch_model.bin.index.json"


class HeadCheckpoint(Checkpoint):
    """A checkpoint that may also lie in `pytorch_model-*.bin` shards beside their index.

    SafeAILab's loader reads `pytorch_model.bin` (EAGLE, `ea_model.py`); transformers shards it.
    Safetensors are preferred where a directory holds both.
    """

    def files(self) -> list[Path]:
        """The weight files, in the order of their names."""
        index = self.directory / BIN_INDEX
        if not index.is_file() or any(self.directory.glob("*.safetensors")):
            return super().files()
        shards = ConfigSection(read_json(index), index).section("weight_map")
        return [self._shard(name) for name in sorted({shards.text(k) for k in shards.values})]

    def _shard(self, name: str) -> Path:
        path = self.directory / name
        if Path(name).name != name or path.suffix != ".bin" or not path.is_file():
            raise CheckpointNotFoundError(
                f"{self.directory / BIN_INDEX}: shard {name!r} is missing"
            )
        return path
