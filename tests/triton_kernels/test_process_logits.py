"""Kernels that process logits, compiled without a GPU."""

from typing import Any

import pytest

from eagle_aot.runtime_runner.sampling.thresholds import EXP2, LOG2E, SCALE_BITS
from support.kernels.compiled import ptx_for_h100

FUSED = "fma.", "mad.rn.f32", "mul.f32", "add.f32"
"""Instructions with other bits than a product and a sum, or that an assembler may fuse."""

STATE = {
    **dict.fromkeys(("sequences_ptr", "positions_ptr", "paths_ptr", "least_ptr"), "*i64"),
    **dict.fromkeys(("top_k_ptr", "sums_ptr"), "*i64"),
    **dict.fromkeys(("biased_ptr", "penalised_ptr", "seen_ptr", "stops_ptr"), "*i1"),
    **{"bitmask_ptr": "*u8", "counts_ptr": "*i32", "top_p_ptr": "*fp64", "thresholds_ptr": "*i32"},
}
SIZES = {"VOCAB": 262_144, "BLOCKS": 64, "MOST_BLOCKS": 64}


def ptx(kernel: Any, options: dict[str, Any], constants: dict[str, Any]) -> str:
    """Compile a kernel to PTX; pointers that are not in `STATE` are to float32."""
    pointers = (name for name in kernel.arg_names if name.endswith("_ptr"))
    return ptx_for_h100(kernel, dict.fromkeys(pointers, "*fp32") | STATE, constants, options)


@pytest.mark.parametrize("name", ["begin", "narrow", "gather", "exact", "cut"])
def test_threshold_kernels_fuse_no_product_into_a_sum(name: str) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from eagle_aot.triton_kernels.process_logits import cut, exact, gather, penalise, search

    constants: dict[str, Any] = {
        **SIZES,
        "BLOCK": penalise.BLOCK,
        "TILE": exact.TILE,
        "FEW": cut.FEW,
    }
    constants |= {"CHOICES": search.CHOICES, "CAPACITY": gather.CAPACITY, "LANES": gather.LANES}
    constants |= {"SCALE_BITS": SCALE_BITS, "LOG2E": LOG2E, "EXP2": EXP2}
    code = ptx(getattr(cut, f"{name}_kernel"), penalise.OPTIONS, constants)
    assert not any(fused in code for fused in FUSED)


@pytest.mark.parametrize(("path", "mask"), [(0, 0), (4, 32_768)])
def test_the_penalty_kernel_fuses_no_product_and_divides_exactly(path: int, mask: int) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from eagle_aot.triton_kernels.process_logits import penalise

    constants = {**SIZES, "BLOCK": penalise.BLOCK, "PATH": path, "MASK": mask}
    code = ptx(penalise.penalise_kernel, penalise.OPTIONS, constants)
    assert not any(fused in code for fused in FUSED) and "div.rn.f32" in code
