"""Weights and caches of a CUDA program, once on the device."""

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from eagle_aot.runtime_runner.executors.room import check_room
from eagle_aot.runtime_runner.program.ptd import TensorData
from eagle_aot.runtime_runner.program.pte import CudaMethod, Weight


class DeviceWeights:
    """One tensor of bytes per storage, shared by all methods that name it.

    The file keeps equal bytes once. Weights that are equal may stay one storage on the device;
    `caches`, the names of what methods write, are all zero in the file and must not.
    """

    def __init__(
        self,
        data: TensorData,
        methods: Iterable[CudaMethod],
        device: torch.device,
        caches: Collection[str],
        sequences: int = 1,
    ) -> None:
        """Caches are of so many `sequences`. Raises UnsupportedError when a GPU has too little
        memory left."""
        self._data = data
        self.caches = frozenset(caches)
        weights: dict[str | int, Weight] = {}
        for weight in (w for method in methods for w in method.weights):
            weights.setdefault(self.place(weight), weight)
        self._parts: dict[str, int] = {}
        for weight in weights.values():
            name = f"{weight.owner} {'cache' if weight.fqn in self.caches else 'weights'}"
            self._parts[name] = self._parts.get(name, 0) + weight.storage_nbytes
        cached = sum(size for name, size in self._parts.items() if name.endswith("cache"))
        if device.type == "cuda":
            check_room(sum(self._parts.values()) - cached, cached, sequences, device)
        self._storages = {place: self._load(w, device) for place, w in weights.items()}

    def tensor(self, weight: Weight) -> Tensor:
        """The view that a method's table describes, over its storage."""
        storage = self._storages[self.place(weight)].untyped_storage()
        empty = torch.empty(0, dtype=weight.dtype, device=storage.device)
        return empty.set_(storage, weight.storage_offset, weight.sizes, weight.strides)

    def bytes_by_part(self) -> dict[str, int]:
        """Bytes of `target weights`, `target cache`, `draft weights` and `draft cache`.

        What both models share counts once, for the target.
        """
        return dict(self._parts)

    def place(self, weight: Weight) -> str | int:
        """Which storage on the device a weight lies in."""
        private = weight.fqn in self.caches or weight.device == "cpu"
        return weight.storage_key if private else self._data.segment(weight.storage_key)

    def _load(self, weight: Weight, device: torch.device) -> Tensor:
        if not weight.storage_nbytes:
            return torch.empty(0, dtype=torch.uint8, device=device)
        if weight.fqn in self.caches:
            return torch.zeros(weight.storage_nbytes, dtype=torch.uint8, device=device)
        host = torch.frombuffer(self._data.storage(weight.storage_key), dtype=torch.uint8)
        # A copy in either case: what a method may write must not be the mapped file.
        return host.to("cpu" if weight.device == "cpu" else device, copy=True)
