"""Conversion of INT8 entries in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch

from eagle_aot.triton_kernels.kv_int8 import dequantize_entries, kernel, quantize_entries


@pytest.mark.parametrize("shape", [(3, 5, 64), (11, 96), (2, 1, 1, 256)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_kernels_convert_as_the_operators_do(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    head_dim, entries = shape[-1], quantize_entries(x)
    made = kernel.quantize(x)
    assert torch.equal(made[..., : head_dim + 4], entries[..., : head_dim + 4])
    read = kernel.dequantize(made, dtype)
    assert read.dtype == dtype and torch.equal(read, dequantize_entries(entries, dtype))
