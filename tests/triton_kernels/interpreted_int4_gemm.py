"""The INT4 kernel in Triton's interpreter, on a CPU.

Run by `test_int4_kernel.py` in a process of its own, because TRITON_INTERPRET must be set before
triton is imported.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from eagle_aot.triton_kernels.int4_gemm import kernel
from eagle_aot.triton_kernels.int4_gemm.reference import int4_linear_reference
from int4_cases import Case, assert_float32_sums, float64_product

FLOAT32_SLACK = 1e-6

CASES = [
    Case(37, 64, 16, torch.float32),
    Case(37, 96, 32, torch.float32),
    Case(70, 256, 64, torch.float32),
    Case(37, 256, 128, torch.float32),
    Case(5, 144, 48, torch.float32),  # neither a power of two nor a multiple of 32
    Case(5, 30, 6, torch.float32),  # a group shorter than the shortest step
    Case(3, 320, 320, torch.float32),  # one group a row
    Case(37, 64, 16, torch.bfloat16),
    Case(37, 96, 32, torch.bfloat16),
    Case(70, 128, 64, torch.bfloat16),
    Case(37, 256, 128, torch.bfloat16),
    Case(37, 256, 128, torch.float16),
]


def float32(handle: interpreter.TensorHandle) -> np.ndarray:
    if handle.dtype.scalar != tl.bfloat16:
        return handle.data.astype(np.float32)
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def ordered_dot(
    _: object,
    a: interpreter.TensorHandle,
    b: interpreter.TensorHandle,
    d: interpreter.TensorHandle,
    *__: object,
) -> interpreter.TensorHandle:
    """A product whose sums run along k in one order, wherever in the tile a row lies."""
    products = float32(a)[:, :, None] * float32(b)[None]
    return interpreter.TensorHandle(products.sum(axis=1) + d.data, d.dtype.scalar)


def rounding(original: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def convert(data: np.ndarray, source: tl.dtype, target: tl.dtype, mode: object) -> np.ndarray:
        if (source, target) != (tl.float32, tl.bfloat16):
            return original(data, source, target, mode)
        rounded = torch.from_numpy(np.ascontiguousarray(data)).bfloat16()
        return rounded.view(torch.int16).numpy().view(np.uint16)

    return convert


@pytest.fixture(autouse=True)
def arithmetic_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter leaves three things to numpy in which it differs from every GPU.

    It multiplies the bit patterns of bfloat16, truncates to bfloat16 instead of rounding, and a
    BLAS product sums a row in an order that depends on the row's place.
    """
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", ordered_dot)
    monkeypatch.setattr(interpreter, "_convert_float", rounding(interpreter._convert_float))


@pytest.fixture(autouse=True)
def launched_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 wraps compiled kernels only."""
    monkeypatch.setattr(kernel, "wrap_triton", lambda interpreted: interpreted)


@pytest.fixture(autouse=True)
def fresh_memory_holds_nan() -> Iterator[None]:
    """What a kernel allocates and forgets to write is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_fresh_memory_holds_nan() -> None:
    assert torch.ones(2).new_empty(100, dtype=torch.bfloat16).isnan().all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_product_is_summed_in_float32(case: Case) -> None:
    weight = case.weight()
    x = case.rows(8)
    assert_float32_sums(kernel.launch(x, *weight), x, weight, FLOAT32_SLACK)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rows_bits_do_not_depend_on_its_neighbours(case: Case) -> None:
    weight = case.weight()
    x = case.rows(8)
    together = kernel.launch(x, *weight)
    for m in range(1, 8):
        assert torch.equal(kernel.launch(x[:, :m], *weight), together[:, :m])
    for row in range(8):
        assert torch.equal(kernel.launch(x[:, row : row + 1], *weight)[:, 0], together[:, row])


def test_a_matrix_gives_a_matrix() -> None:
    weight = CASES[0].weight()
    x = CASES[0].rows(3)
    assert torch.equal(kernel.launch(x[0], *weight), kernel.launch(x, *weight)[0])


def test_rows_and_columns_outside_the_output_are_not_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outputs of 3 rows at the start of a buffer: whatever follows keeps its NaN."""
    case = Case(37, 64, 64, torch.float32)
    weight, x = case.weight(), case.rows(3)[0]
    buffer = torch.full((1024,), torch.nan)

    allocate = Tensor.new_empty

    def from_buffer(x: Tensor, shape: int | tuple[int, ...], **options: object) -> Tensor:
        if shape != (3, 37):  # the interpreter's own
            return allocate(x, shape, **options)
        return buffer[: 3 * 37].view(shape)

    monkeypatch.setattr(Tensor, "new_empty", from_buffer)
    output = kernel.launch(x, *weight)
    assert output.data_ptr() == buffer.data_ptr()
    assert not buffer[: 3 * 37].isnan().any() and buffer[3 * 37 :].isnan().all()


@pytest.mark.parametrize(("wanted", "splits"), [(1, 1), (2, 2), (3, 3), (5, 4), (16, 16)])
def test_every_split_of_k_sums_to_the_product(
    monkeypatch: pytest.MonkeyPatch, wanted: int, splits: int
) -> None:
    case = Case(37, 16 * 32, 32, torch.float32)
    monkeypatch.setattr(kernel, "MAX_SPLITS", wanted)
    assert kernel.tiling(37, 16 * 32, 32).splits == splits
    weight, x = case.weight(), case.rows(8)
    assert_float32_sums(kernel.launch(x, *weight), x, weight, FLOAT32_SLACK)


def test_fractional_zero_points_cost_no_more_than_dequantising() -> None:
    case = Case(37, 256, 32, torch.bfloat16)
    weight = case.weight(integer_zeros=False)
    x = case.rows(8)
    exact, _ = float64_product(x, weight)
    error = (kernel.launch(x, *weight) - exact).square().mean()
    assert error <= (int4_linear_reference(x, *weight) - exact).square().mean()
