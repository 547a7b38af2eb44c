"""The files that hold weights; each kind has the same interface."""

from pathlib import Path

from eagle_aot.targets.weight_files.dense_files import PickledFile, SafetensorsFile
from eagle_aot.targets.weight_files.protocol import TensorStorage, WeightFile
from eagle_aot.targets.weight_files.stacked_experts import UnstackedFile
from eagle_aot.targets.weight_files.torchao_file import TorchaoFile

__all__ = ["TensorStorage", "WeightFile", "open_weight_file"]


def open_weight_file(path: Path) -> WeightFile:
    """Open the file at `path`, by its suffix and its metadata.

    Raises CheckpointError, and UnsupportedError for quantized experts in one tensor.
    """
    file = _open(path)
    return UnstackedFile(file) if UnstackedFile.recognises(file) else file


def _open(path: Path) -> WeightFile:
    if path.suffix == ".bin":
        return PickledFile(path)
    if path.suffix == ".gguf":
        from eagle_aot.targets.weight_files.gguf_file import GgufFile  # an optional dependency

        return GgufFile(path)
    file = SafetensorsFile(path)
    return TorchaoFile(file) if TorchaoFile.recognises(file) else file
