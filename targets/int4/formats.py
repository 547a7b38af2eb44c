"""The readers of quantised linears, by the `quant_method` of config.json."""

from collections.abc import Callable
from dataclasses import dataclass

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4 import awq_gptq, compressed_tensors
from eagle_aot.targets.int4.weight import Int4Weight


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """How a quantisation method stores a linear as several tensors.

    `check` raises UnsupportedError for what `read` would misread, `check_module` for a single
    linear. `suffixes` are those of all tensors that `read` may use; a tensor with the first one
    marks a linear as quantised.
    """

    check: Callable[[ConfigSection], None]
    suffixes: tuple[str, ...]
    read: Callable[[Checkpoint, str], Int4Weight]
    check_module: Callable[[ConfigSection, str], None] = lambda config, module: None

    def holds(self, checkpoint: Checkpoint, module: str) -> bool:
        """Whether the linear called `module` is quantised."""
        return f"{module}.{self.suffixes[0]}" in checkpoint


COMPRESSED_TENSORS = "compressed-tensors"
IN_THE_FILE = "torchao"
"""A method whose files describe their tensors themselves."""

FORMATS = {
    COMPRESSED_TENSORS: QuantFormat(
        compressed_tensors.check_config, compressed_tensors.SUFFIXES, compressed_tensors.read_weight
    ),
    "awq": QuantFormat(
        awq_gptq.check_awq, awq_gptq.AWQ_SUFFIXES, awq_gptq.read_awq, awq_gptq.check_module
    ),
    "gptq": QuantFormat(
        awq_gptq.check_gptq, awq_gptq.GPTQ_SUFFIXES, awq_gptq.read_gptq, awq_gptq.check_module
    ),
}
"""Formats by `quant_method`."""
AUTO_ROUND = ("auto-round", "intel/auto-round")
PACKINGS = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}
"""The formats that auto-round writes; its default is the first. Source: vLLM 0.26
`quantization/inc.py`."""


def format_of(checkpoint: Checkpoint) -> QuantFormat | None:
    """Return how the checkpoint stores quantised linears as several tensors; None if it does not.

    Raises UnsupportedError for a method or a variant that is not read.
    """
    config = checkpoint.quantization
    if not config.values:
        return None
    method = config.text("quant_method", "").lower()
    if method in AUTO_ROUND:
        packing = config.text("packing_format", next(iter(PACKINGS)))
        if packing not in PACKINGS:
            supported = ", ".join(PACKINGS)
            raise UnsupportedError(
                f"auto-round's packing_format {packing!r}: known are {supported}"
            )
        method = PACKINGS[packing]
    if method == IN_THE_FILE:
        return None
    if method not in FORMATS:
        supported = ", ".join([*FORMATS, IN_THE_FILE])
        raise UnsupportedError(f"quantisation method {method!r}: known are {supported}")
    FORMATS[method].check(config)
    return FORMATS[method]
