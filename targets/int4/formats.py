"""Which reader takes what config.json says of its quantised linears, as one plain table."""

from collections.abc import Callable
from dataclasses import dataclass

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4 import awq, compressed_tensors, gptq
from eagle_aot.targets.int4.weight import Int4Weight


@dataclass(frozen=True, slots=True)
class Format:
    """How one method stores a linear as several tensors.

    `check` refuses what `read` would misread; `suffixes` are of all tensors that `read` uses or
    knows, the first of which says that a linear is quantised.
    """

    check: Callable[[ConfigSection], None]
    suffixes: tuple[str, ...]
    read: Callable[[Checkpoint, str], Int4Weight]

    def holds(self, checkpoint: Checkpoint, module: str) -> bool:
        """Whether the linear called `module` is quantised."""
        return f"{module}.{self.suffixes[0]}" in checkpoint


COMPRESSED_TENSORS = "compressed-tensors"
IN_THE_FILE = "torchao"
"""A method whose files say themselves what they hold."""

FORMATS = {
    COMPRESSED_TENSORS: Format(
        compressed_tensors.check_config,
        compressed_tensors.SUFFIXES,
        compressed_tensors.read_weight,
    ),
    "awq": Format(awq.check_config, awq.SUFFIXES, awq.read_weight),
    "gptq": Format(gptq.check_config, gptq.SUFFIXES, gptq.read_weight),
}
"""By `quant_method`."""


def format_of(checkpoint: Checkpoint) -> Format | None:
    """How the checkpoint stores quantised linears; None: as its files say, or it has none.

    Raises UnsupportedError for a method or a variant that is not read.
    """
    config = checkpoint.quantization
    if not config.values:
        return None
    method = config.text("quant_method", "")
    if method == IN_THE_FILE:
        return None
    if method not in FORMATS:
        known = ", ".join([*FORMATS, IN_THE_FILE])
        raise UnsupportedError(f"quantisation method {method!r}: known are {known}")
    FORMATS[method].check(config)
    return FORMATS[method]
