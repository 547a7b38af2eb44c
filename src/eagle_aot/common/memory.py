"""Memory of this process and of devices, and errors that report a lack of it."""

import ctypes
import gc
import re
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_aot.common.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

LEAST_ADDRESSES = 5 << 28
"""Bytes below which libraries of PyTorch abort the process while they load."""
REQUESTED = re.compile(r"tried to allocate ([\d.]+ ?[A-Za-z]+)", re.IGNORECASE)
"""PyTorch's message: `20.00 MiB` from CUDA's allocator, `64 bytes` from the host's."""
SIGNS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
    "MemoryAllocationFailed",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
LOWER = (
    "end other programs there, or export with a smaller --max-seq-len, --max-prefill or "
    "--max-batch-size or a model of fewer or quantized weights"
)


def host_peak_bytes() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux reports KiB


def host_own_peak_bytes() -> int:
    """Return the largest resident set of this process, without memory and files that it shares with
    other processes. Linux only.

    `getrusage` would include the memory of the parent process.
    """
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    peak, *shared = (
        int(status[name].split()[0]) << 10 for name in ("VmHWM", "RssShmem", "RssFile")
    )
    return max(peak - sum(shared), 0)


def release_memory() -> None:
    """Free objects that only refer to each other, and return what allocators keep to the system."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of the GNU C library
        trim(0)


def host_free_bytes() -> int | None:
    """Return the bytes that this process may still allocate: available memory and swap, at most
    what `ulimit -v` allows. A container's own limit is not considered. None if unknown.
    """
    try:
        meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        free = sum(int(meminfo[name].split()[0]) << 10 for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError):
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return free
    return min(free, max(limit - pages * resource.getpagesize(), 0))


def check_address_space() -> None:
    """Raise UnsupportedError if `ulimit -v` is too low to load PyTorch."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESSES:
        raise UnsupportedError(
            f"out of memory on the host: {limit / 2**30:.2f} GiB of addresses (ulimit -v), "
            f"{LEAST_ADDRESSES / 2**30:.2f} are needed to load PyTorch: raise that limit"
        )


def shortage(error: BaseException) -> str | None:
    """Return one line with the memory that was needed and what to reduce; None for other errors.

    PyTorch and ExecuTorch report a lack of memory as a RuntimeError that only its text identifies.
    """
    text = str(error)
    if not isinstance(error, MemoryError) and not any(sign in text for sign in SIGNS):
        return None
    device = "the GPU" if "CUDA" in text or "CUBLAS" in text else "the host"
    requested = REQUESTED.search(text)
    needed = f", {readable(requested[1])} more were needed" if requested else ""
    return f"out of memory on {device}{needed}: {LOWER}"


def readable(amount: str) -> str:
    """Return `1099511627776 bytes` as `1024.0 GiB`; amounts in other units stay as they are."""
    count, _, unit = amount.partition(" ")
    return in_binary(int(count)) if unit == "bytes" and count.isdecimal() else amount


def in_binary(count: int) -> str:
    """Return a number of bytes in GiB, or in MiB below one GiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def free_bytes(device: "torch.device") -> int | None:
    """Return the free bytes of a GPU, or of the host; None if unknown."""
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else host_free_bytes()


def taken_bytes(free: int | None, left: int | None) -> int | None:
    """Return how much of the `free` bytes was taken where `left` of them are left; None if either
    is unknown. Other processes, and PyTorch's own cache, may have freed more than was taken."""
    return None if free is None or left is None else max(free - left, 0)
