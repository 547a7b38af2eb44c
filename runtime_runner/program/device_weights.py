"""The weights and caches of a CUDA program, loaded once to the device."""

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from eagle_aot.artifact import Constants
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.common.memory import LOWER, in_binary
from eagle_aot.runtime_runner.program.cache_pages import PAGE, BufferShape, CachePages
from eagle_aot.runtime_runner.program.executor import check_memory
from eagle_aot.runtime_runner.program.pte import CudaMethod, TensorData, Weight

PAGES = "pages of caches"

RESERVE = 16
"""One part in so many of a GPU's memory is left to forwards where caches would take all of it."""


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
        constants: Constants | None = None,
        cache_memory: int | None = None,
    ) -> None:
        """Load everything.

        On a GPU whose memory, or `cache_memory` bytes of it, is too small for the caches of all
        sequences, keys and values get memory by `pages`. Raises UnsupportedError when it is too
        small for one sequence.
        """
        self._data = data
        self.caches = frozenset(caches)
        weights: dict[str | int, Weight] = {}
        for weight in (w for method in methods for w in method.weights):
            weights.setdefault(self.storage_of(weight), weight)
        self._parts: dict[str, int] = {}
        for weight in weights.values():
            part = self._part_of(weight)
            self._parts[part] = self._parts.get(part, 0) + weight.storage_nbytes
        self.pages: CachePages | None = None
        self._storages: dict[str | int, Tensor] = {}
        if device.type == "cuda" and constants is not None:
            pageable = {key: w for key, w in weights.items() if self._is_pageable(w)}
            budget = page_budget(self._parts, nbytes(pageable), device, constants, cache_memory)
            if budget is not None:
                self._page(pageable, budget, constants, device)
        for key, weight in weights.items():
            if key not in self._storages:
                self._storages[key] = self._load(weight, device)

    def tensor(self, weight: Weight) -> Tensor:
        """Return the view of a storage that a method's weight table describes."""
        storage = self._storages[self.storage_of(weight)].untyped_storage()
        empty = torch.empty(0, dtype=weight.dtype, device=storage.device)
        return empty.set_(storage, weight.storage_offset, weight.sizes, weight.strides)

    def bytes_by_part(self) -> dict[str, int]:
        """Return the bytes of `target weights`, `target cache`, `draft weights`, `draft cache`.

        Weights that both models share count once, for the target. `PAGES` are what caches share.
        """
        return dict(self._parts) | ({PAGES: self.pages.nbytes} if self.pages else {})

    def _part_of(self, weight: Weight) -> str:
        return f"{weight.owner} {'cache' if weight.fqn in self.caches else 'weights'}"

    def storage_of(self, weight: Weight) -> str | int:
        """Return the key of the device storage that a weight lies in."""
        private = weight.fqn in self.caches or weight.device == "cpu"
        return weight.storage_key if private else self._data.segment(weight.storage_key)

    def _is_pageable(self, weight: Weight) -> bool:
        """Whether it holds keys or values of all sequences, [heads, sequences * slots, D]."""
        kind = weight.fqn.rpartition(".")[2]
        return weight.fqn in self.caches and kind in ("k", "v") and len(weight.sizes) == 3

    def _page(
        self,
        weights: Mapping[str | int, Weight],
        budget: int,
        constants: Constants,
        device: torch.device,
    ) -> None:
        """Let caches share `budget` pages."""
        from eagle_aot.runtime_runner.program.cuda_pages import CudaPages

        margin = constants.flat_slots - constants.max_seq_len
        memory = CudaPages(device, budget)
        shapes = [buffer_shape(w, constants.max_batch_size) for w in weights.values()]
        self.pages = CachePages(shapes, memory, constants.flat_slots, margin)
        least = self.pages.most_pages(constants.max_seq_len)
        if least > budget:
            raise UnsupportedError(
                f"the caches of one text of {constants.max_seq_len} tokens take "
                f"{in_binary(least * PAGE)}, and there are {in_binary(budget * PAGE)} for them on "
                f"the GPU: {LOWER}"
            )
        for (key, weight), shape in zip(weights.items(), shapes, strict=True):
            self._storages[key] = memory.add(shape, margin)
            self._parts[self._part_of(weight)] -= weight.storage_nbytes

    def _load(self, weight: Weight, device: torch.device) -> Tensor:
        if not weight.storage_nbytes:
            return torch.empty(0, dtype=torch.uint8, device=device)
        if weight.fqn in self.caches:
            return torch.zeros(weight.storage_nbytes, dtype=torch.uint8, device=device)
        host = torch.frombuffer(self._data.storage(weight.storage_key), dtype=torch.uint8)
        # A copy in either case: what a method may write must not be the mapped file.
        return host.to("cpu" if weight.device == "cpu" else device, copy=True)


def buffer_shape(weight: Weight, sequences: int) -> BufferShape:
    """Return the shape of keys or values [heads, sequences * slots, D], as they lie in memory: by
    token all heads of a slot are one entry."""
    heads, slots, head_dim = weight.sizes
    together = heads if weight.strides[0] < weight.strides[1] else 1
    entry = together * head_dim * weight.dtype.itemsize
    return BufferShape(heads // together, sequences, slots // sequences, entry)


def nbytes(weights: Mapping[str | int, Weight]) -> int:
    """Return the bytes of some storages."""
    return sum(weight.storage_nbytes for weight in weights.values())


def page_budget(
    parts: Mapping[str, int],
    pageable: int,
    device: torch.device,
    constants: Constants,
    cache_memory: int | None,
) -> int | None:
    """Return how many pages there are for the `pageable` bytes of caches, None if all of them fit.

    `parts` are the bytes of all weights and caches. Raises UnsupportedError where the GPU has no
    memory for the caches of one sequence."""
    total = sum(parts.values())
    caches = sum(size for name, size in parts.items() if name.endswith("cache"))
    fixed = total - pageable
    check_memory(fixed, pageable // constants.max_batch_size, 1, device)
    free, size = torch.cuda.mem_get_info(device)
    room = free - fixed
    if cache_memory is None:
        return None if pageable <= room else (room - size // RESERVE) // PAGE
    room = min(room, cache_memory - (caches - pageable))
    return None if pageable <= room else room // PAGE
