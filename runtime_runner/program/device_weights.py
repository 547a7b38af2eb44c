"""The weights and caches of a CUDA program, loaded once to the device."""

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from eagle_aot.runtime_runner.program.executor import check_memory
from eagle_aot.runtime_runner.program.pte import CudaMethod, TensorData, Weight


class DeviceWeights:
    """One tensor of bytes per storage, shared by all methods that use it.

    The file stores equal bytes once. Equal weights may share a storage on the device too. `caches`
    are the names of buffers that methods write: all of them are zero in the file, so they must not.
    """

    def __init__(
        self,
        data: TensorData,
        methods: Iterable[CudaMethod],
        device: torch.device,
        caches: Collection[str],
        sequences: int = 1,
    ) -> None:
        """Load everything; the caches hold `sequences` sequences.

        Raises UnsupportedError when the GPU has too little free memory.
        """
        self._data = data
        self.caches = frozenset(caches)
        weights: dict[str | int, Weight] = {}
        for weight in (w for method in methods for w in method.weights):
            weights.setdefault(self.storage_of(weight), weight)
        self._parts: dict[str, int] = {}
        for weight in weights.values():
            name = f"{weight.owner} {'cache' if weight.fqn in self.caches else 'weights'}"
            self._parts[name] = self._parts.get(name, 0) + weight.storage_nbytes
        cached = sum(size for name, size in self._parts.items() if name.endswith("cache"))
        if device.type == "cuda":
            check_memory(sum(self._parts.values()) - cached, cached, sequences, device)
        self._storages = {key: self._load(w, device) for key, w in weights.items()}

    def tensor(self, weight: Weight) -> Tensor:
        """Return the view of a storage that a method's weight table describes."""
        storage = self._storages[self.storage_of(weight)].untyped_storage()
        empty = torch.empty(0, dtype=weight.dtype, device=storage.device)
        return empty.set_(storage, weight.storage_offset, weight.sizes, weight.strides)

    def bytes_by_part(self) -> dict[str, int]:
        """Return the bytes of `target weights`, `target cache`, `draft weights`, `draft cache`.

        Weights that both models share count once, for the target.
        """
        return dict(self._parts)

    def storage_of(self, weight: Weight) -> str | int:
        """Return the key of the device storage that a weight lies in."""
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
