"""Errors of exhausted memory are recognised, with the bytes needed and the option to lower."""

import subprocess
import sys

import pytest
import torch

from eagle_aot.common.memory import shortage, taken_bytes

LOWER = "or export with a smaller --max-seq-len"
CUDA = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of "
    "which 11.00 MiB is free."
)


def test_the_line_for_the_host_names_the_missing_bytes() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**50, dtype=torch.uint8)
    line = shortage(raised.value)
    assert line is not None and LOWER in line
    assert line.startswith("out of memory on the host, 1048576.0 GiB more were needed: end other")


def test_the_line_for_a_gpu_names_the_missing_bytes() -> None:
    line = shortage(torch.OutOfMemoryError(CUDA))
    assert line is not None and LOWER in line
    assert line.startswith("out of memory on the GPU, 20.00 MiB more were needed: end other")


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("error: 0x21 MemoryAllocationFailed"),
              RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
              RuntimeError("CUDA error: out of memory"), OSError(12, "Cannot allocate memory")],
)  # fmt: skip
def test_memory_that_ran_out_without_a_number(error: Exception) -> None:
    line = shortage(error)
    assert line is not None and line.startswith("out of memory on the ") and LOWER in line


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError(), OSError(28, "No")])
def test_other_errors_are_not_a_shortage_of_memory(error: Exception) -> None:
    assert shortage(error) is None


def test_free_host_memory_ends_at_the_limit_of_addresses() -> None:
    """As `ulimit -v` sets it, in a process of its own."""
    code = (
        "import resource; from eagle_aot.common.memory import host_free_bytes as free\n"
        "before = free(); resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\n"
        "print(before, free())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, limited = map(int, done.stdout.split())
    assert 0 < limited < 1 << 28 < before


def test_a_process_s_own_memory_is_what_no_other_shares() -> None:
    code = """if True:
        import mmap
        from eagle_aot.common.memory import host_own_peak_bytes
        before, page = host_own_peak_bytes(), bytes(1 << 20)
        for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
            memory = mmap.mmap(-1, 1 << 28, flags)
            for _ in range(256):
                memory.write(page)
            print(host_own_peak_bytes() - before)
    """
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    shared, private = map(int, printed.stdout.split())
    assert shared < 2**26 < 2**28 < private + 2**22


@pytest.mark.parametrize(
    ("free", "left", "taken"), [(9, 4, 5), (4, 9, 0), (4, 0, 4), (None, 4, None), (4, None, None)]
)
def test_taken_memory_is_not_negative(free: int | None, left: int | None, taken: int) -> None:
    """More may be free than before."""
    assert taken_bytes(free, left) == taken
