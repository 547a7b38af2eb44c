"""Which reader a file of weights needs."""

from pathlib import Path

from eagle_aot.targets.weight_files.pickled import PickledFile
from eagle_aot.targets.weight_files.protocol import WeightFile
from eagle_aot.targets.weight_files.safetensors_file import SafetensorsFile
from eagle_aot.targets.weight_files.torchao_file import TorchaoFile


def open_weight_file(path: Path) -> WeightFile:
    """The file at `path`, by its suffix and its own metadata. Raises CheckpointError."""
    if path.suffix == ".bin":
        return PickledFile(path)
    if path.suffix == ".gguf":
        from eagle_aot.targets.weight_files.gguf_file import GgufFile  # an optional dependency

        return GgufFile(path)
    file = SafetensorsFile(path)
    return TorchaoFile(file) if TorchaoFile.recognises(file) else file
