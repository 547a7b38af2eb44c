"""What all tests of interpreted kernels share."""

from collections.abc import Iterator
from importlib import import_module

import pytest
import torch

LAUNCHERS = (
    "choose_experts.kernel", "copy_rows.kernel", "dense_gemm.kernel", "int4_experts.few_rows",
    "int4_experts.many_rows", "int4_experts.order", "int4_gemm.large_m", "int4_gemm.small_m",
    "norm_rope_store.kernel", "residual_norm.kernel", "screened_table.kernel",
    "sdpa_prompt.kernel", "sdpa_splitk.kernel",
)  # fmt: skip
"""Modules that wrap their kernels for torch, which wraps only compiled kernels since torch 2.11."""


@pytest.fixture(autouse=True, scope="session")
def interpret_like_a_gpu() -> Iterator[None]:
    """Let the interpreter compute like a GPU, and fast; fill new memory with NaN."""
    from support.interpreted.as_a_gpu import compute_as_a_gpu, remember_types  # needs triton

    with pytest.MonkeyPatch.context() as patch:
        remember_types(patch)
        compute_as_a_gpu(patch)
        for name in LAUNCHERS:
            module = import_module(f"eagle_aot.triton_kernels.{name}")
            patch.setattr(module, "wrap_triton", lambda kernel: kernel)
        torch.use_deterministic_algorithms(True)
        yield
        torch.use_deterministic_algorithms(False)
