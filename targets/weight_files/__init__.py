"""The files that weights are in: each kind behind the same few questions."""

from eagle_aot.targets.weight_files.opening import open_weight_file
from eagle_aot.targets.weight_files.protocol import Stored, WeightFile

__all__ = ["Stored", "WeightFile", "open_weight_file"]
