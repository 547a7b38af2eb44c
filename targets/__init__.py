"""Target models, and how their checkpoints are read."""

from eagle_aot.targets.protocol import TapTarget
from eagle_aot.targets.registry import TARGETS, TargetSpec, get_target, load_target, model_type

__all__ = ["TARGETS", "TapTarget", "TargetSpec", "get_target", "load_target", "model_type"]
