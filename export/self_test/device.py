"""A model on another device for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def moved(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Run `model`, which is on the host, on `device`; afterwards it has the very tensors it had.

    Moving it there and back would part tensors that share memory, and exports store those once.
    """
    if device.type == "cpu":
        yield
        return
    homes: list[dict[str, Any]] = [
        home for m in model.modules() for home in (m._parameters, m._buffers)
    ]
    before = [dict(home) for home in homes]
    copies: dict[tuple[int, torch.Size, tuple[int, ...]], Tensor] = {}
    try:
        for home in homes:
            for name, tensor in home.items():
                if tensor is not None:
                    home[name] = _copy(tensor, device, copies)
        yield
    finally:
        for home, tensors in zip(homes, before, strict=True):
            home.update(tensors)


def _copy(
    tensor: Tensor,
    device: torch.device,
    copies: dict[tuple[int, torch.Size, tuple[int, ...]], Tensor],
) -> Tensor:
    """One for all that see the same memory alike; a parameter where `tensor` is one."""
    key = tensor.data_ptr(), tensor.shape, tensor.stride()
    if key not in copies or not tensor.numel():
        copies[key] = tensor.detach().to(device)
    copy = copies[key]
    return nn.Parameter(copy, requires_grad=False) if isinstance(tensor, nn.Parameter) else copy
