"""Launches the kernels of `screen.cu` and `rescore.cu`: a screened table on an H100 or H200.

They take the place of `screen_kernel` and `rescore_kernel`. Importing this module needs triton.
"""

from pathlib import Path

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels import cuda_source
from eagle_aot.triton_kernels.cuda_source import Macros, as_text, described
from eagle_aot.triton_kernels.device import H100, H100_SHARED, capability, multiprocessors
from eagle_aot.triton_kernels.screened_table.packing import BOUNDS, GROUP, ScreenCopy

SCREEN, RESCORE = (Path(__file__).with_name(name) for name in ("screen.cu", "rescore.cu"))
UNIT, ROWS = 16, 8
"""Rows of the table, and of x, that a program multiplies at a time."""

SCREEN_THREADS, RESCORE_WARPS = 320, 4
PART, STEP = 8, 256
"""Rows of the table that `screen.cu`, and columns that `rescore.cu` copies at a time."""

LEAST_COLUMNS, MOST_COLUMNS = 2048, 8192
"""Shorter rows would be copied before the next are claimed; digits of so many columns fit the
registers of a program, and x its shared memory."""


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


@triton.jit(do_not_specialize=["logits"])
def rescore_table_kernel(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    norms_ptr: tl.tensor,
    largest_only_ptr: tl.tensor,
    uppers_ptr: tl.tensor,
    out_ptr: tl.tensor,
    logits: tl.tensor,
    CUDA: tl.constexpr,
) -> None:
    """Stand for the kernel of `rescore.cu`: its arguments, and stores to all that it writes."""
    number = tl.inline_asm_elementwise(CUDA, "=r,r", [logits], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr, number.to(out_ptr.dtype.element_ty))


def is_served(weight: Tensor) -> bool:
    """Whether the kernels serve a table [N, K] in this export."""
    features, columns = weight.shape
    whole = features % UNIT == 0 and columns % STEP == 0
    fits = LEAST_COLUMNS <= columns <= MOST_COLUMNS
    return whole and fits and capability() == H100 and cuda_source.is_compiling()


def launch(
    x: Tensor,
    weight: Tensor,
    copy: ScreenCopy,
    digits: Tensor,
    norms: Tensor,
    largest_only: Tensor,
    out: Tensor,
    count: int,
) -> None:
    """Launch both kernels, or nothing if `count` is 0. They do nothing if all logits may be read.

    `x` [..., K], `weight` [N, K] and `out` [..., N] are those of the product; `digits` int8
    [2 ROWS, K'] and `norms` float32 [5, ROWS] are what `digits_kernel` writes.
    """
    (features, columns), padded = weight.shape, copy.values.shape[1]
    uppers = norms.new_empty((features // UNIT, ROWS))
    # Not the rows: for one row torch would make a kernel without that argument.
    more = norms, largest_only, uppers, out, out.numel()
    grid = (count * multiprocessors(),)
    sizes: Macros = {"PADDED": padded, "OUTPUTS": features, "SLOTS": screen_slots(padded)}
    wrap_triton(screen_table_kernel)[grid](
        *(digits, copy.values, copy.scales, copy.errors, copy.norms, *more),
        CUDA=described(SCREEN, as_text(sizes | BOUNDS), SCREEN_THREADS, H100_SHARED),
    )
    sizes = {"COLUMNS": columns, "OUTPUTS": features, "SLOTS": rescore_slots(columns)}
    wrap_triton(rescore_table_kernel)[grid](
        *(x, weight, *more),
        CUDA=described(RESCORE, as_text(sizes | BOUNDS), 32 * RESCORE_WARPS, H100_SHARED),
    )


def screen_slots(padded: int) -> int:
    """Return the slots of a ring of rows of so many digits, beside sums and barriers."""
    groups = padded // GROUP
    warps = -(-groups // -(-groups // 8))
    sums = 2 * (warps * UNIT * 24 * 4 + 16)
    return min((H100_SHARED - sums - 16 * 32) // (PART * (padded + 16 + 2 * groups)), 16)


def rescore_slots(columns: int) -> int:
    """Return the slots of a warp's ring, beside rows of x of so many columns and a list."""
    rest = H100_SHARED - ROWS * (2 * columns + 16) - 1024
    return min(rest // (RESCORE_WARPS * UNIT * (2 * STEP + 16)), 8)
