"""What is free where an artifact's weights and caches will lie."""

import torch

from eagle_aot.common.memory import host_free_bytes


def free_bytes(device: torch.device) -> int | None:
    """Of a GPU, whoever uses the rest, or of the host; None where that is not known."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else host_free_bytes()
