"""What the config.json of every kind of head may say."""

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets.config_section import ConfigSection


def architectures(config: ConfigSection) -> tuple[str, ...]:
    """Return the class names in a config.json, none if it has no such key."""
    return config.texts("architectures") if config.has("architectures") else ()


def refuse_quantised(config: ConfigSection) -> None:
    """Raise UnsupportedError for a head whose weights are quantised."""
    if config.has("quantization_config"):
        raise UnsupportedError(f"{config.where}: the head is quantized; only plain weights load")
