"""Weights and caches of a CUDA program, once on the device."""

from collections.abc import Iterable

import torch
from eagle_aot.runtime_runner.ptd import TensorData
from eagle_aot.runtime_runner.pte import CudaMethod, Weight
from torch import Tensor

from eagle_aot.artifact import CACHE_MARK


class DeviceWeights:
    """One tensor of bytes per storage, shared by all methods that name it.

    The file keeps equal bytes once. Weights that are equal may stay one storage on the device;
    caches, which are all zero in the file, must not.
    """

    def __init__(
        self, data: TensorData, methods: Iterable[CudaMethod], device: torch.device
    ) -> None:
        self._data = data
        self._device = device
        self._loaded: dict[str | int, Tensor] = {}
        self._parts: dict[str, int] = {}
        for method in methods:
            for weight in method.weights:
                self._load(weight)

    def tensor(self, weight: Weight) -> Tensor:
        """The view that a method's table describes, over its storage."""
        storage = self._loaded[self._place(weight)].untyped_storage()
        empty = torch.empty(0, dtype=weight.dtype, device=storage.device)
        return empty.set_(storage, weight.storage_offset, weight.sizes, weight.strides)

    def bytes_by_part(self) -> dict[str, int]:
        """Bytes of `target weights`, `target cache`, `draft weights` and `draft cache`.

        What both models share counts as the target's.
        """
        return dict(self._parts)

    def _place(self, weight: Weight) -> str | int:
        private = CACHE_MARK in weight.fqn or weight.device == "cpu"
        return weight.storage_key if private else self._data.segment(weight.storage_key)

    def _load(self, weight: Weight) -> None:
        place = self._place(weight)
        if place in self._loaded:
            return
        host = torch.frombuffer(self._data.storage(weight.storage_key), dtype=torch.uint8)
        # A copy in either case: the file is closed when this object goes.
        copy = host.clone() if weight.device == "cpu" else host.to(self._device)
        self._loaded[place] = copy
        part = f"{weight.fqn.split('.')[0]} {'cache' if CACHE_MARK in weight.fqn else 'weights'}"
        self._parts[part] = self._parts.get(part, 0) + copy.numel()
