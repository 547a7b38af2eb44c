"""A pair whose weights lie in memory that several processes map, so that there is one of each."""

import io
import mmap
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from eagle_aot.common.zeros import untouched_zeros
from eagle_aot.export.pair import Pair
from eagle_aot.targets.decoder.kv_cache import KVCache

ALIGNMENT = 256
"""Bytes, of each storage in the memory."""


class SharedPair:
    """A pair that can be handed to processes as they are spawned; its weights are not copied.

    Caches are made anew there, of zeros that take no memory. What holds the tensors lies behind
    them, as processes would else begin one after another: whoever spawns one waits until it has
    read what it is given, which it does behind its imports. For Linux.
    """

    def __init__(self, pair: Pair) -> None:
        """Moves the weights of `pair`, which stays the pair it is, one storage after another."""
        self._file = os.memfd_create("weights")
        self._size = _size(pair)
        os.ftruncate(self._file, self._size)
        places = _moved(pair, mmap.mmap(self._file, self._size))
        with open(os.dup(self._file), "ab") as structure:
            _Writer(structure, places).dump(pair)

    def pair(self) -> Pair:
        """The pair, over the memory of all."""
        memory = mmap.mmap(self._file, 0)
        pair = _Reader(io.BytesIO(memory[self._size :]), memory).load()
        assert isinstance(pair, Pair)
        return pair

    def close(self) -> None:
        """Hand it to nobody any more; whoever has the pair keeps it."""
        os.close(self._file)

    def __getstate__(self) -> dict[str, Any]:
        return {"file": DupFd(self._file), "size": self._size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._file, self._size = state["file"].detach(), state["size"]


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor by its form, and where its storage lies in the memory.

    One of no `size` lies nowhere: a cache, which is all zeros.
    """

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    first: int
    is_parameter: bool
    offset: int
    size: int

    @classmethod
    def of(cls, tensor: Tensor, offset: int, size: int) -> "Place":
        layout = tensor.shape, tensor.stride(), int(tensor.storage_offset())
        return cls(tensor.dtype, *layout, isinstance(tensor, nn.Parameter), offset, size)

    def tensor(self, memory: mmap.mmap) -> Tensor:
        """The tensor there, as a storage of its own, or zeros."""
        tensor = torch.empty(0, dtype=self.dtype)
        if self.size:
            storage = _bytes(memory, self.offset, self.size).untyped_storage()
            tensor.set_(storage, self.first, self.shape, self.stride)
        else:
            form = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
            tensor = untouched_zeros(form)
        return nn.Parameter(tensor, requires_grad=False) if self.is_parameter else tensor


class _Writer(pickle.Pickler):
    """Writes the places of tensors in their stead."""

    def __init__(self, file: BinaryIO, places: dict[int, Place]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._places = places

    def persistent_id(self, thing: Any) -> tuple[int, Place] | None:
        return (id(thing), self._places[id(thing)]) if isinstance(thing, Tensor) else None


class _Reader(pickle.Unpickler):
    """Makes one tensor again of what was one."""

    def __init__(self, file: io.BytesIO, memory: mmap.mmap) -> None:
        super().__init__(file)
        self._memory = memory
        self._tensors: dict[int, Tensor] = {}

    def persistent_load(self, known: tuple[int, Place]) -> Tensor:
        identity, place = known
        if identity not in self._tensors:
            self._tensors[identity] = place.tensor(self._memory)
        return self._tensors[identity]


class _Filling:
    """Memory that is filled from its beginning, each storage once."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory, self._end = memory, 0
        self._offsets: dict[int, int] = {}

    def moved(self, tensor: Tensor) -> tuple[Tensor, Place]:
        """The same tensor over the memory, and where it is."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._offsets:
            self._offsets[storage.data_ptr()] = self._end
            source = torch.empty(0, dtype=torch.uint8).set_(storage)
            _bytes(self._memory, self._end, storage.nbytes()).copy_(source)
            self._end += _padded(storage.nbytes())
        place = Place.of(tensor, self._offsets[storage.data_ptr()], storage.nbytes())
        return place.tensor(self._memory), place


def _moved(pair: Pair, memory: mmap.mmap) -> dict[int, Place]:
    """Put the weights of the pair into the memory; the places of its tensors by their identities.

    A weight is freed before the next one is copied, unless somebody else holds it.
    """
    filling = _Filling(memory)
    moved: dict[int, tuple[Tensor, Place]] = {}  # by what was, which goes
    for home, name, stays in _homes(pair):
        before = id(home[name])
        if before not in moved:
            tensor = home[name]
            moved[before] = (tensor, Place.of(tensor, 0, 0)) if stays else filling.moved(tensor)
            del tensor
        home[name] = moved[before][0]
    return {id(tensor): place for tensor, place in moved.values()}


def _size(pair: Pair) -> int:
    """Bytes of memory for all weights, at least one."""
    storages = (home[name].untyped_storage() for home, name, stays in _homes(pair) if not stays)
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return max(sum(map(_padded, sizes.values())), 1)


def _homes(pair: Pair) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """Where each tensor is held, under which name, and whether it stays: caches do, and what has no
    values."""
    for module in pair.modules():
        homes: tuple[dict[str, Any], ...] = module._parameters, module._buffers
        for home in homes:
            for name in list(home):
                if home[name] is not None:
                    empty = not home[name].untyped_storage().nbytes()
                    yield home, name, empty or isinstance(module, KVCache)


def _bytes(memory: mmap.mmap, offset: int, size: int) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=offset)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
