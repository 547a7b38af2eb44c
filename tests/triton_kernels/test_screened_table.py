"""The screened output table without a GPU: its copy's bounds, its operator, its kernels."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim

from eagle_aot.triton_kernels.dense_gemm.tiling import DENSE_TILES
from eagle_aot.triton_kernels.screened_table.op import screened_logits
from eagle_aot.triton_kernels.screened_table.packing import GROUP, screen_copy
from support.kernels.compiled import analyse_for_h100
from support.kernels.screen_cases import rows_near, table


@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1e-3, 1.0, 1e30]))
def test_a_copy_is_as_far_from_its_table_as_it_says(columns: int, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(5, columns, generator=generator) * scale).bfloat16()
    weight[0] = 0
    copy = screen_copy(weight)
    padded = -(-columns // GROUP) * GROUP
    assert copy.values.shape == (5, padded) and copy.scales.shape == (5, padded // GROUP)
    steps = copy.scales.double().repeat_interleave(GROUP, 1)
    dense = copy.values.double() * steps
    assert not dense[:, columns:].any()
    lost = (weight.double() - dense[:, :columns]).norm(dim=1)
    assert bool((lost <= copy.errors.double()).all())
    assert bool((copy.errors.double() <= lost * (1 + 1e-6) + 1e-44).all())
    assert bool((dense.norm(dim=1) <= copy.norms.double()).all())
    # Half a step, and what rounding the scale to 8 bits adds at the end of the range.
    assert bool((lost <= steps[:, :columns].norm(dim=1) * 1.01 + 1e-37).all())


def test_the_cpu_operator_computes_the_product() -> None:
    weight, copy = table(70, 320)
    x = rows_near(weight, 3, 0.5)
    arguments = x, weight, copy.values, copy.scales, copy.errors, copy.norms, torch.tensor([1])
    assert torch.equal(screened_logits(*arguments), torch.nn.functional.linear(x, weight))
    torch.library.opcheck(screened_logits, arguments, test_utils=("test_schema", "test_faketensor"))


def test_the_lowered_operator_is_three_kernels_and_the_dense_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    analyse_for_h100(monkeypatch)
    weight, copy = table(256, 320)

    class Table(nn.Module):
        def forward(self, x: Tensor, largest_only: Tensor) -> Tensor:
            tensors = copy.values, copy.scales, copy.errors, copy.norms
            return screened_logits(x, weight, *tensors, largest_only)

    shapes: tuple[dict[int, Dim], ...] = ({1: Dim("rows", min=1, max=256)}, {})
    example = torch.zeros(1, 8, 320, dtype=torch.bfloat16), torch.tensor([0])
    program = torch.export.export(Table(), example, dynamic_shapes=shapes)
    opened = program.run_decompositions({}, decompose_custom_triton_ops=True)
    wrapper = torch.ops.higher_order.triton_kernel_wrapper_functional
    written = [n.kwargs["tensors_to_clone"] for n in opened.graph.nodes if n.target is wrapper]
    screened = [["digits_ptr", "norms_ptr"], ["norms_ptr", "uppers_ptr", "out_ptr"], ["out_ptr"]]
    assert written == screened + [["out_ptr"]] * (len(DENSE_TILES) - 1)
