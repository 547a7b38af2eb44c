"""A GPU's memory in pages, by the virtual memory management of CUDA's driver API.

Its functions are described in NVIDIA's "CUDA Driver API", Virtual Memory Management.
"""

import ctypes
import weakref
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.runtime_runner.program.cache_pages import PAGE, BufferShape, Pages

OUT_OF_MEMORY = 2
PINNED = DEVICE = 1
READ_WRITE = 3


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c_int), ("id", c_int))


class Properties(ctypes.Structure):
    """CUmemAllocationProp: what kind of memory is made."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("compression", c_ubyte),
        ("rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc: which device may use an address, and how."""

    _fields_ = (("location", Location), ("flags", c_int))


class CudaPages:
    """Buffers of a GPU whose pages have memory where they are mapped.

    Padding rows write to the first and last slots of any sequence, which is never read. Where these
    have no memory of their own, one page of scratch stands for all of them.
    """

    def __init__(self, device: torch.device, budget: int) -> None:
        """Have at most `budget` pages."""
        self._budget, self._device = budget, device
        self._location = Location(DEVICE, device.index)
        self._bases: list[int] = []
        self._always: list[np.ndarray[tuple[int], np.dtype[np.bool_]]] = []
        self._memory = Allocations()
        self._scratch = self._created()
        assert self._scratch is not None, "there is memory for a page"
        # Not when the process ends: the driver may be gone by then.
        weakref.finalize(self, self._memory.release).atexit = False

    def add(self, shape: BufferShape, margin: int) -> Tensor:
        """Return a buffer as bytes, uint8 [N]. `margin` slots at both ends of a sequence may be
        written at any time."""
        pages = -(-shape.nbytes // PAGE)
        base = c_uint64()
        size = pages * PAGE
        check(
            "MemAddressReserve", byref(base), c_size_t(size), c_size_t(PAGE), c_uint64(), c_uint64()
        )
        self._memory.addresses.append((base.value, size))
        self._bases.append(base.value)
        ends = np.zeros(pages, dtype=bool)
        ends[border_pages(shape, margin)] = True
        self._always.append(ends)
        self._map_scratch(base.value, np.flatnonzero(ends))
        return torch.as_tensor(Bytes(self, base.value, shape.nbytes), device=self._device)

    @property
    def nbytes(self) -> int:
        return len(self._memory.handles) * PAGE

    def reserve(self, pages: int) -> bool:
        memory = self._memory
        while len(memory.free) < pages and len(memory.handles) < self._budget:
            if (handle := self._created()) is None:  # other programs have taken the rest
                self._budget = len(memory.handles)
            else:
                memory.free.append(handle)
        return len(memory.free) >= pages

    def map(self, buffer: int, pages: Pages) -> None:
        base, always = self._bases[buffer], self._always[buffer]
        self._unmap(base, pages[always[pages]])
        for page in pages.tolist():
            self._map(base, page, self._memory.free.pop())
        self._allow(base, pages)

    def unmap(self, buffer: int, pages: Pages) -> None:
        base, always = self._bases[buffer], self._always[buffer]
        self._unmap(base, pages)
        self._map_scratch(base, pages[always[pages]])

    def _created(self) -> int | None:
        """Make a page of memory; None where none is left."""
        handle = c_uint64()
        properties = Properties(type=PINNED, location=self._location)
        status = driver().cuMemCreate(byref(handle), c_size_t(PAGE), byref(properties), c_uint64())
        if status == OUT_OF_MEMORY:
            return None
        raise_for("MemCreate", status)
        self._memory.handles.append(handle.value)
        return handle.value

    def _map(self, base: int, page: int, handle: int) -> None:
        address = base + page * PAGE
        check("MemMap", c_uint64(address), c_size_t(PAGE), c_size_t(), c_uint64(handle), c_uint64())
        self._memory.mapped[address] = handle

    def _map_scratch(self, base: int, pages: Pages) -> None:
        assert self._scratch is not None
        for page in pages.tolist():
            self._map(base, page, self._scratch)
        self._allow(base, pages)

    def _unmap(self, base: int, pages: Pages) -> None:
        if len(pages):
            torch.cuda.synchronize(self._device)  # nothing may be using them
        for page in pages.tolist():
            handle = self._memory.unmap(base + page * PAGE)
            if handle != self._scratch:
                self._memory.free.append(handle)

    def _allow(self, base: int, pages: Pages) -> None:
        """Let the device read and write mapped pages: one call for each run of them."""
        access = Access(self._location, READ_WRITE)
        for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
            if len(run):
                first, size = base + int(run[0]) * PAGE, len(run) * PAGE
                check("MemSetAccess", c_uint64(first), c_size_t(size), byref(access), c_size_t(1))


def border_pages(shape: BufferShape, margin: int) -> Pages:
    """Return the pages of the first and last `margin` slots of each head and sequence."""
    width = min(margin, shape.slots) * shape.entry
    region = shape.slots * shape.entry
    first = np.arange(shape.heads * shape.sequences) * region
    ends = (first, first + width - 1, first + region - width, first + region - 1)
    assert width <= PAGE, "no page lies between these"
    return np.unique(np.concatenate(ends) // PAGE)


class Allocations:
    """What has to be given back: memory, addresses, and where the one is mapped to the other."""

    def __init__(self) -> None:
        self.handles: list[int] = []
        self.free: list[int] = []
        self.addresses: list[tuple[int, int]] = []
        self.mapped: dict[int, int] = {}

    def unmap(self, address: int) -> int:
        """Unmap a page and return its memory."""
        check("MemUnmap", c_uint64(address), c_size_t(PAGE))
        return self.mapped.pop(address)

    def release(self) -> None:
        """Give everything back."""
        torch.cuda.synchronize()
        for address in list(self.mapped):
            self.unmap(address)
        for handle in self.handles:
            check("MemRelease", c_uint64(handle))
        for address, size in self.addresses:
            check("MemAddressFree", c_uint64(address), c_size_t(size))


class Bytes:
    """An address as PyTorch takes it. It keeps `owner`, whose memory this is."""

    def __init__(self, owner: object, address: int, nbytes: int) -> None:
        self._owner = owner
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3
        }  # fmt: skip


@cache
def driver() -> ctypes.CDLL:
    """Return CUDA's driver library, which a process that uses a GPU has loaded."""
    return ctypes.CDLL("libcuda.so.1")


def check(function: str, *arguments: object) -> None:
    """Call a function of the driver. Raises UnsupportedError if it fails."""
    raise_for(function, getattr(driver(), f"cu{function}")(*arguments))


def raise_for(function: str, status: int) -> None:
    """Raise UnsupportedError for a status other than success."""
    if status:
        raise UnsupportedError(f"the GPU's driver refused cu{function}: error {status}")
