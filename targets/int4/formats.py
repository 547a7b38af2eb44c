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

    `check` raises UnsupportedError for what `read` would misread. `bits` returns the bits of a
    single linear, 4 or 8, and raises UnsupportedError for others. `suffixes` are those of all
    tensors that `read` may use; a tensor with the first one marks a linear as quantised.
    """

    check: Callable[[ConfigSection], None]
    suffixes: tuple[str, ...]
    read: Callable[[Checkpoint, str], Int4Weight]
    bits: Callable[[Checkpoint, str], int]

    def holds(self, checkpoint: Checkpoint, module: str) -> bool:
        """Whether the linear called `module` is quantised."""
        return f"{module}.{self.suffixes[0]}" in checkpoint

    def elements(self, checkpoint: Checkpoint, module: str) -> int:
        """Return how many weights the linear called `module` stores."""
        words = checkpoint.shape(f"{module}.{self.suffixes[0]}")
        return WORD_BITS // self.bits(checkpoint, module) * words.numel()


WORD_BITS = 32
COMPRESSED_TENSORS = "compressed-tensors"
IN_THE_FILE = "torchao"
"""A method whose files describe their tensors themselves."""

FORMATS = {
    COMPRESSED_TENSORS: QuantFormat(
        compressed_tensors.check_config,
        compressed_tensors.SUFFIXES,
        compressed_tensors.read_weight,
        compressed_tensors.stored_bits,
    ),
    "awq": QuantFormat(
        awq_gptq.check_awq, awq_gptq.AWQ_SUFFIXES, awq_gptq.read_awq, awq_gptq.awq_bits
    ),
    "gptq": QuantFormat(
        awq_gptq.check_gptq, awq_gptq.GPTQ_SUFFIXES, awq_gptq.read_gptq, awq_gptq.gptq_bits
    ),
}
"""Formats by `quant_method`."""
AUTO_ROUND = ("auto-round", "intel/auto-round")
PACKINGS = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:auto_awq": "awq",
    **dict.fromkeys(awq_gptq.V2_PACKINGS, "gptq"),
}
"""The formats that auto-round writes; its default is the first. Source: vLLM 0.26
`quantization/inc.py`, auto-round 0.16 `inference/backend.py`."""


def format_of(checkpoint: Checkpoint) -> QuantFormat | None:
    """Return how the checkpoint stores quantised linears as several tensors; None if it does not.

    Raises UnsupportedError for a method or a variant that is not read.
    """
    method = method_of(checkpoint.quantization)
    return None if method in (None, IN_THE_FILE) else FORMATS[str(method)]


def method_of(config: ConfigSection) -> str | None:
    """Return the key of `FORMATS`, or `IN_THE_FILE`, for the section of a config on the
    quantization of weights; None for an empty one. Raises as `format_of` does."""
    if not config.values:
        return None
    method = config.text("quant_method", config.text("method", "")).lower()
    if method in AUTO_ROUND:
        packing = config.text("packing_format", next(iter(PACKINGS)))
        if packing not in PACKINGS:
            supported = ", ".join(PACKINGS)
            raise UnsupportedError(
                f"auto-round's packing_format {packing!r}: known are {supported}"
            )
        method = PACKINGS[packing]
    if method == IN_THE_FILE:
        return method
    if method not in FORMATS:
        supported = ", ".join([*FORMATS, IN_THE_FILE])
        raise UnsupportedError(f"quantization method {method!r}: known are {supported}")
    FORMATS[method].check(config)
    return method
