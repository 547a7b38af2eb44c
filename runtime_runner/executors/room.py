"""Whether an artifact fits the memory that there is, before it is loaded."""

import torch

from eagle_aot.common.device_memory import free_bytes
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.common.memory import LOWER, in_binary


def check_room(weights: int, caches: int, sequences: int, device: torch.device) -> None:
    """Raise UnsupportedError unless so many bytes of weights, and of caches of all `sequences`, are
    free on the device."""
    free = free_bytes(device)
    if free is None or weights + caches <= free:
        return
    place = "the GPU" if device.type == "cuda" else "the host"
    fitting = (free - weights) * sequences // caches if free > weights else 0
    some = f", of which {fitting} would fit" if fitting else ""
    raise UnsupportedError(
        f"weights take {in_binary(weights)} and caches of {sequences} sequences "
        f"{in_binary(caches)}{some}, and {in_binary(free)} are free on {place}: {LOWER}"
    )
