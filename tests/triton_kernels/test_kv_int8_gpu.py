"""Conversion of INT8 entries on a GPU."""

import pytest
import torch

from eagle_aot.triton_kernels.kv_int8 import dequantize_entries, quantize_entries

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("head_dim", [64, 96, 256, 512])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_entries_are_those_of_a_cpu(head_dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(5, 77, head_dim, generator=torch.Generator().manual_seed(3)).to(dtype)
    entries, made = quantize_entries(x), quantize_entries(x.cuda())
    assert torch.equal(made[..., : head_dim + 4].cpu(), entries[..., : head_dim + 4])
    assert torch.equal(dequantize_entries(made, dtype).cpu(), dequantize_entries(entries, dtype))
