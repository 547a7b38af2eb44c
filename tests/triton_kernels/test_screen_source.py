"""The CUDA source that screens a table: its results by fibers, and what it is compiled to.

Fibers take the place of a GPU's threads.
"""

import shutil
from ctypes import CDLL, c_bool, c_void_p
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.cuda_source import Macros, as_text
from eagle_aot.triton_kernels.device import H100
from eagle_aot.triton_kernels.screened_table import packing
from eagle_aot.triton_kernels.screened_table.packing import GROUP, ScreenCopy
from support.kernels.compiled import (
    Launch,
    Unlaunched,
    compiled_by_nvcc,
    compiled_for_cpu,
    declared_names,
    empty,
    launches,
    local_memory,
)
from support.kernels.screen_cases import rows_near, table

pytest.importorskip("triton", reason="triton is not installed")

SOURCE = Path(packing.__file__).with_name("screen.cu")
ROWS = 8


def digits_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `digits_kernel` writes for x [rows, K]: digits int8 [16, K], norms [4, 8]."""
    rows, columns = x.shape
    scale = x.abs().amax(1, keepdim=True) / 127
    high = (x / scale + 0.5).floor()
    low = ((x - high * scale) / scale * 254 + 0.5).floor()
    digits = torch.randint(-127, 128, (2 * ROWS, columns), dtype=torch.int8)  # of unused rows
    norms = torch.full((4, ROWS), torch.nan)
    digits[:rows], digits[ROWS : ROWS + rows] = high, low
    lacking = x - high * scale - low * scale / 254
    for at, norm in enumerate((scale[:, 0], x.norm(dim=1), lacking.norm(dim=1))):
        norms[at, :rows] = norm
    norms[3] = -torch.inf
    return digits, norms


def compiled(copy: ScreenCopy, slots: int, directory: Path) -> CDLL:
    """Compile `screen` of `screen_on_cpu.cpp` for a table, with a ring of so many slots or, for 0,
    as many as usual."""
    from eagle_aot.triton_kernels.screened_table import screen

    features, padded = copy.values.shape
    macros: Macros = {"PADDED": padded, "OUTPUTS": features}
    macros |= {"SLOTS": slots or screen.slots(padded)}
    macros |= {"SHARED": screen.SHARED, "LAUNCHED": screen.THREADS}
    return compiled_for_cpu("screen_on_cpu.cpp", SOURCE, as_text(macros), directory)


@pytest.mark.skipif(None in (shutil.which("nvcc"), shutil.which("g++")), reason="needs compilers")
@pytest.mark.parametrize(
    ("features", "columns", "slots"),
    [(640, 1280, 0), (160, 300, 0), (64, 128, 0), (256, 1152, 3), (192, 2176, 5)],
)
def test_bounds_and_logits_are_those_of_the_copy(
    features: int, columns: int, slots: int, tmp_path: Path
) -> None:
    """With programs of different shares, with more programs than there are rows to share, and with
    units at a ring's end and again at its start."""
    weight, copy = table(features, columns)
    library = compiled(copy, slots, tmp_path)
    library.screen.restype = c_bool
    dense = copy.values.double() * copy.scales.double().repeat_interleave(GROUP, 1)
    for rows, blocks in ((1, 3), (5, 2), (8, 12)):
        x = torch.nn.functional.pad(rows_near(weight, rows, 0.5)[0].float(), (0, -columns % GROUP))
        digits, norms = digits_of(x)
        uppers = torch.full((features // 16, ROWS), torch.nan)
        out = torch.full((rows, features), torch.nan, dtype=torch.bfloat16)
        largest_only = torch.ones(1, dtype=torch.int64)
        tensors = digits, copy.values, copy.scales, copy.errors, copy.norms, largest_only
        inputs = (c_void_p * 6)(*(each.data_ptr() for each in tensors))
        results = [c_void_p(each.data_ptr()) for each in (norms, uppers, out)]
        assert library.screen(inputs, *results, rows * features, blocks, rows)
        first, second = (each[:rows].double() for each in digits.split(ROWS))
        scale = norms[0, :rows, None].double()
        logits = (first * scale + second * scale / 254) @ dense.T
        torch.testing.assert_close(out.double(), logits, rtol=2**-8, atol=1e-3)
        error, copied = copy.errors.double(), copy.norms.double()
        bound = norms[1, :rows, None] * (error + 2**-11 * (copied + error))
        bound = bound + norms[2, :rows, None] * copied
        above = (logits + bound).unflatten(1, (-1, 16)).amax(2).T
        torch.testing.assert_close(uppers[:, :rows].double(), above, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            norms[3, :rows].double(), (logits - bound).amax(1), rtol=1e-5, atol=1e-5
        )


def launched(features: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Return the call that screens a table in an export for an H100."""
    from eagle_aot.triton_kernels import cuda_source
    from eagle_aot.triton_kernels.screened_table import kernel, screen

    padded = -(-columns // GROUP) * GROUP
    values = empty(features, padded, dtype=torch.int8)
    errors, norms = (empty(features, dtype=torch.float32) for _ in range(2))
    copy = ScreenCopy(values, empty(features, padded // GROUP), errors, norms)
    monkeypatch.setattr(cuda_source, "is_compiling", lambda: True)
    monkeypatch.setattr(kernel, "wrap_triton", Unlaunched)
    monkeypatch.setattr(kernel, "launch_tile", lambda *_: None)
    largest_only = empty(1, dtype=torch.int64)
    arguments = empty(1, 8, columns), empty(features, columns), copy, largest_only
    (call,) = launches(monkeypatch, screen, lambda: kernel.launch(*arguments), H100)
    return call


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("features", "columns"), [(262_144, 5376), (151_936, 4096), (128_256, 8192), (49_152, 576)]
)
def test_the_source_is_compiled_in_place_of_a_triton_kernel(
    features: int, columns: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call = launched(features, columns, monkeypatch)
    assert call.kernel.arg_names == declared_names(SOURCE, call.kernel)
    binary = compiled_by_nvcc(call, monkeypatch)
    assert (binary.metadata.num_warps, binary.metadata.shared) == (10, 227 << 10)
    assert local_memory(binary.asm["cubin"], tmp_path) == 0


def test_other_tables_are_screened_by_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="not enough values"):
        launched(49_153, 576, monkeypatch)
    with pytest.raises(ValueError, match="not enough values"):
        launched(1024, 8320, monkeypatch)
