"""How much memory this process takes, and memory that ran out told from other errors."""

import re
import resource
import sys
from pathlib import Path

from eagle_aot.common.errors import UnsupportedError

LEAST_ADDRESSES = 5 << 28
"""Bytes: with less, libraries of PyTorch abort the process while they load."""
ASKED = re.compile(r"tried to allocate ([\d.]+ ?[A-Za-z]+)", re.IGNORECASE)
"""PyTorch's words, on either: `20.00 MiB` from CUDA's allocator, `64 bytes` from the host's."""
SIGNS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
    "MemoryAllocationFailed",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
LOWER = (
    "end other programs there, or export with a smaller --max-seq-len or --max-batch-size or a "
    "model of fewer or quantised weights"
)


def host_peak_bytes() -> int:
    """Largest resident set of this process so far (Linux reports KiB, macOS bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def host_own_peak_bytes() -> int:
    """The same without what it shares with other processes now: memory and files. Linux only.

    `getrusage` would count what the process took that spawned this one.
    """
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    peak, *shared = (
        int(status[name].split()[0]) << 10 for name in ("VmHWM", "RssShmem", "RssFile")
    )
    return max(peak - sum(shared), 0)


def host_free_bytes() -> int | None:
    """What this process may still take: memory that can be had, swap included, and no more than
    `ulimit -v` leaves. None where the system does not tell. A container's own limit is not in it.
    """
    try:
        told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        free = sum(int(told[name].split()[0]) << 10 for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError):
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return free
    return min(free, max(limit - pages * resource.getpagesize(), 0))


def check_address_space() -> None:
    """Raise UnsupportedError where `ulimit -v` leaves no room for PyTorch itself."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESSES:
        raise UnsupportedError(
            f"out of memory on the host: {limit / 2**30:.2f} GiB of addresses (ulimit -v), "
            f"{LEAST_ADDRESSES / 2**30:.2f} are needed to load PyTorch: raise that limit"
        )


def shortage(error: BaseException) -> str | None:
    """One line on what was needed and what to lower; None for an error that is no lack of memory.

    PyTorch and ExecuTorch report it as a RuntimeError, whose text is all that tells it apart.
    """
    text = str(error)
    if not isinstance(error, MemoryError) and not any(sign in text for sign in SIGNS):
        return None
    place = "the GPU" if "CUDA" in text or "CUBLAS" in text else "the host"
    asked = ASKED.search(text)
    needed = f", {readable(asked[1])} more were needed" if asked else ""
    return f"out of memory on {place}{needed}: {LOWER}"


def readable(amount: str) -> str:
    """`1099511627776 bytes` -> `1024.0 GiB`; an amount in another unit as it is."""
    count, _, unit = amount.partition(" ")
    return in_binary(int(count)) if unit == "bytes" and count.isdecimal() else amount


def in_binary(count: int) -> str:
    """Bytes in GiB, in MiB where there is less than one."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
