"""Kernels that begin while the one before them ends: programmatic dependent launch.

From compute capability 9.0 on a kernel may be started while the one before it still runs, where the
edge between them in a CUDA graph says so. Its programs take the places that are left, make ready,
and wait. Launched in any other way the same kernels compute the same: there the wait is over at
once, and to let the next begin does nothing.

A kernel of `KERNELS` does three things, in this order, before all others:

- `let_next_begin`: the kernel behind may be started once every program of this one runs;
- `fetch_ahead`: first bytes of its weights go to the L2 cache, while DRAM has little else to do.
  No program receives them here, and L2 is where all programs of a GPU meet, so whatever lies there
  may as well be written meanwhile;
- `wait_for_earlier`: until the kernel before has ended, and what it wrote can be read.

All programs wait before they read or write anything. So a kernel ends behind the one before it,
and by induction behind all before that; whoever waits for it waits for all of them. That covers
what was written two and more kernels before, and memory that is used again: who writes to a buffer
has waited for those that read what it held. Kernels of others, which do not wait for all of this,
must begin when the one before has ended, and kernels of ours may begin early behind them.

Importing this module needs triton.
"""

import triton
import triton.language as tl

from eagle_aot.triton_kernels import device

KERNELS = (
    "dense_small_m_kernel",
    "int4_small_m_kernel",
    "norm_rope_store_kernel",
    "residual_norm_kernel",
    "sdpa_combine_kernel",
    "sdpa_splitk_kernel",
)
"""Those of a step, by name. Each has a constexpr `EARLY`: whether it does all that."""

FIRST = (9, 0)
"""The first compute capability that can."""


def launches_early() -> bool:
    """Whether kernels for the GPU here, or for an H100, are compiled to wait."""
    return not triton.knobs.runtime.interpret and device.capability() >= FIRST


def _fetch(which: str) -> str:
    """$2 bytes from $1 on, where that is any, on request of those threads. On one line, as torch
    takes a kernel's constants."""
    return " ".join(
        (
            "{ .reg .pred asks; .reg .b32 thread; mov.u32 thread, %tid.x;",
            f"setp.{which} asks, thread, 0; setp.gt.and.s32 asks, $2, 0, asks;",
            "@asks cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }",
        )
    )


FETCH_ONCE, FETCH_EACH = tl.constexpr(_fetch("eq.u32")), tl.constexpr(_fetch("ge.u32"))

AHEAD = tl.constexpr(32768)
"""Bytes of its weight that a program of a product fetches ahead, at most."""


@triton.jit
def let_next_begin(EARLY: tl.constexpr) -> None:
    """Let the kernel behind be started, as soon as all programs of this one came here."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def fetch_ahead(values_ptr: tl.tensor, count: tl.tensor, EARLY: tl.constexpr) -> None:
    """Fetch `count` values to L2, from one address or from each of several."""
    if EARLY:
        width: tl.constexpr = values_ptr.dtype.element_ty.primitive_bitwidth // 8
        # Whole units of 16 bytes; what a memory's owner aligns begins at one.
        first = values_ptr.to(tl.int64) & -16
        size = (first * 0).to(tl.int32) + (count * width) // 16 * 16
        tl.inline_asm_elementwise(
            FETCH_EACH if values_ptr.type.is_block() else FETCH_ONCE,
            "=r,l,r",
            [first, size],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def wait_for_earlier(EARLY: tl.constexpr) -> None:
    """Return when the kernel before has ended."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
