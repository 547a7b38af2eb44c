"""The CUDA sources of a screened table: their results by fibers, and what they are compiled to.

Fibers take the place of a GPU's threads.
"""

import shutil
from ctypes import CDLL, c_bool, c_void_p
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.cuda_source import Macros, as_text
from eagle_aot.triton_kernels.device import H100, H100_SHARED
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

SCREEN, RESCORE = (Path(packing.__file__).with_name(f"{n}.cu") for n in ("screen", "rescore"))
ROWS = 8


def digits_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `digits_kernel` writes for x [rows, K]: digits int8 [16, K], norms [5, 8]."""
    rows, columns = x.shape
    scale = x.abs().amax(1, keepdim=True) / 127
    high = (x / scale + 0.5).floor()
    low = ((x - high * scale) / scale * 254 + 0.5).floor()
    digits = torch.randint(-127, 128, (2 * ROWS, columns), dtype=torch.int8)  # of unused rows
    norms = torch.full((5, ROWS), torch.nan)
    digits[:rows], digits[ROWS : ROWS + rows] = high, low
    lacking = x - high * scale - low * scale / 254
    for at, norm in enumerate((scale[:, 0], x.norm(dim=1), lacking.norm(dim=1))):
        norms[at, :rows] = norm
    norms[3], norms[4] = -torch.inf, 0
    return digits, norms


def compiled(source: Path, macros: Macros, directory: Path) -> CDLL:
    """Compile the harness of a source for a table."""
    from eagle_aot.triton_kernels.screened_table import screen

    threads = screen.SCREEN_THREADS if source == SCREEN else 32 * screen.RESCORE_WARPS
    macros = macros | packing.BOUNDS | {"SHARED": H100_SHARED, "LAUNCHED": threads}
    return compiled_for_cpu(f"{source.stem}_on_cpu.cpp", source, as_text(macros), directory)


needs_compilers = pytest.mark.skipif(
    None in (shutil.which("nvcc"), shutil.which("g++")), reason="needs compilers"
)


@needs_compilers
@pytest.mark.parametrize(
    ("features", "columns", "slots"),
    [(640, 1280, 0), (160, 300, 0), (64, 128, 0), (256, 1152, 3), (192, 2176, 5)],
)
def test_bounds_and_logits_are_those_of_the_copy(
    features: int, columns: int, slots: int, tmp_path: Path
) -> None:
    """With more programs than units, and with units at a ring's end and again at its start."""
    from eagle_aot.triton_kernels.screened_table.screen import screen_slots

    weight, copy = table(features, columns)
    padded = copy.values.shape[1]
    sizes: Macros = {"PADDED": padded, "OUTPUTS": features, "SLOTS": slots or screen_slots(padded)}
    library = compiled(SCREEN, sizes, tmp_path)
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


@needs_compilers
@pytest.mark.parametrize(("features", "columns", "slots"), [(1280, 512, 2), (4352, 256, 3)])
def test_logits_that_may_be_largest_are_those_of_the_product(
    features: int, columns: int, slots: int, tmp_path: Path
) -> None:
    """With more units than a ring has slots, more than threads look through at once, and none; and
    where all logits may be read, which others then compute."""
    weight, _ = table(features, columns)
    sizes: Macros = {"COLUMNS": columns, "OUTPUTS": features, "SLOTS": slots}
    library = compiled(RESCORE, sizes, tmp_path)
    library.rescore.restype = c_bool
    for rows, blocks, share, only in ((1, 3, 0.1, 1), (5, 1, 0.3, 1), (8, 2, 0, 1), (8, 2, 1, 0)):
        x = rows_near(weight, rows, 0.5)[0]
        norms, uppers = torch.full((5, ROWS), torch.nan), torch.full((features // 16, ROWS), 200.0)
        norms[3, :rows] = torch.linspace(-1, 1, rows)
        uppers[:, :rows] = norms[3, :rows] - 0.01
        found = torch.rand(features // 16, rows) < share / rows
        uppers[:, :rows][found] = torch.where(torch.rand(int(found.sum())) < 0.5, 1.0, 129.0)
        out = torch.full((rows, features), torch.nan, dtype=torch.bfloat16)
        tensors = x, weight, norms, torch.tensor([only]), uppers
        inputs = (c_void_p * 5)(*(each.data_ptr() for each in tensors))
        assert library.rescore(inputs, c_void_p(out.data_ptr()), rows * features, blocks, rows)
        written = found.any(1).repeat_interleave(16) & (only == 1)
        assert torch.equal(~out.isnan(), written.expand(rows, -1))
        exact = (x.double() @ weight.double().T).bfloat16()
        torch.testing.assert_close(out[:, written], exact[:, written], rtol=2**-7, atol=1e-3)


def launched(features: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Return the calls that screen a table and rescore it in an export for an H100."""
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
    return launches(monkeypatch, screen, lambda: kernel.launch(*arguments), H100)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("features", "columns"), [(262_144, 5376), (151_936, 4096), (128_256, 8192), (49_152, 2048)]
)
def test_the_sources_are_compiled_in_place_of_triton_kernels(
    features: int, columns: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = launched(features, columns, monkeypatch)
    for call, source, warps in zip(calls, (SCREEN, RESCORE), (10, 4), strict=True):
        assert call.kernel.arg_names == declared_names(source, call.kernel)
        binary = compiled_by_nvcc(call, monkeypatch)
        assert (binary.metadata.num_warps, binary.metadata.shared) == (warps, 227 << 10)
        assert local_memory(binary.asm["cubin"], tmp_path) == 0


def test_other_tables_are_screened_by_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for features, columns in ((49_153, 2048), (1024, 8448), (1024, 2176), (1024, 1024)):
        assert not launched(features, columns, monkeypatch)
