"""Launches the kernel of `screen.cu`: the screening of a table on an H100 or H200.

It takes the place of `screen_kernel`. Importing this module needs triton.
"""

from pathlib import Path

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels import cuda_source
from eagle_aot.triton_kernels.cuda_source import Macros, as_text
from eagle_aot.triton_kernels.device import H100, SHARED_MEMORY, capability, multiprocessors
from eagle_aot.triton_kernels.screened_table.packing import GROUP, ScreenCopy

SOURCE = Path(__file__).with_name("screen.cu")
SHARED = SHARED_MEMORY[H100] << 10
THREADS, UNIT, PART = 320, 16, 8
"""Threads, and rows of the table that a program multiplies and copies at a time."""

MOST_COLUMNS = 8192
"""Digits of so many columns fit the registers of a program."""


@triton.jit(do_not_specialize=["logits"])
def screen_table_kernel(
    digits_ptr: tl.tensor,
    values_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    errors_ptr: tl.tensor,
    copies_ptr: tl.tensor,
    norms_ptr: tl.tensor,
    largest_only_ptr: tl.tensor,
    uppers_ptr: tl.tensor,
    out_ptr: tl.tensor,
    logits: tl.tensor,
    CUDA: tl.constexpr,
) -> None:
    """Stand for the kernel of `screen.cu`: its arguments, and stores to all that it writes."""
    number = tl.inline_asm_elementwise(CUDA, "=r,r", [logits], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(norms_ptr, number.to(norms_ptr.dtype.element_ty))
    tl.store(uppers_ptr, number.to(uppers_ptr.dtype.element_ty))
    tl.store(out_ptr, number.to(out_ptr.dtype.element_ty))


def is_served(copy: ScreenCopy) -> bool:
    """Whether the kernel screens a table in this export."""
    features, padded = copy.values.shape
    served = padded <= MOST_COLUMNS and features % UNIT == 0 and capability() == H100
    return served and cuda_source.is_compiling()


def launch(
    digits: Tensor,
    copy: ScreenCopy,
    norms: Tensor,
    largest_only: Tensor,
    uppers: Tensor,
    out: Tensor,
    count: int,
) -> None:
    """Launch the kernel, or nothing if `count` is 0. Arguments are those of `screen_kernel`:
    `digits` int8 [2 ROWS, K'], `norms` float32 [4, ROWS], `out` [..., N], but `uppers` [N / 16,
    ROWS]."""
    features, padded = copy.values.shape
    macros: Macros = {"PADDED": padded, "OUTPUTS": features, "SLOTS": slots(padded)}
    wrap_triton(screen_table_kernel)[(count * multiprocessors(),)](
        digits,
        copy.values,
        copy.scales,
        copy.errors,
        copy.norms,
        norms,
        largest_only,
        uppers,
        out,
        out.numel(),  # and not rows: for 1 torch would make a kernel without that argument
        CUDA=cuda_source.described(SOURCE, as_text(macros), THREADS, SHARED),
    )


def slots(padded: int) -> int:
    """Return the slots of a ring of rows of so many columns."""
    groups = padded // GROUP
    warps = -(-groups // -(-groups // 8))
    sums = 2 * warps * UNIT * 24 * 4
    return min((SHARED - sums - 16 * 16) // (PART * (padded + 16 + 2 * groups)), 16)
