"""Checks before loading that an artifact fits the free memory."""

import torch

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.common.memory import LOWER, free_bytes, in_binary


def check_memory(weights: int, caches: int, sequences: int, device: torch.device) -> None:
    """Raise UnsupportedError unless the device has enough free memory.

    `weights` and `caches` are bytes; the caches hold `sequences` sequences together.
    """
    free = free_bytes(device)
    if free is None or weights + caches <= free:
        return
    device_name = "the GPU" if device.type == "cuda" else "the host"
    fitting = (free - weights) * sequences // caches if free > weights else 0
    some = f" ({fitting} would fit)" if fitting else ""
    raise UnsupportedError(
        f"weights take {in_binary(weights)} and caches of {sequences} sequences "
        f"{in_binary(caches)}{some}, and {in_binary(free)} are free on {device_name}: {LOWER}"
    )
