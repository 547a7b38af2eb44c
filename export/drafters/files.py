"""A head's checkpoint."""

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection


class HeadCheckpoint(Checkpoint):
    """A head's config.json and tensors."""


def architectures(config: ConfigSection) -> tuple[str, ...]:
    """Return the class names in a config.json, none if it has no such key."""
    return config.texts("architectures") if config.has("architectures") else ()


def refuse_quantised(config: ConfigSection) -> None:
    """Raise UnsupportedError for a head whose weights are quantised."""
    if config.has("quantization_config"):
        raise UnsupportedError(f"{config.where}: the head is quantised; only plain weights load")
