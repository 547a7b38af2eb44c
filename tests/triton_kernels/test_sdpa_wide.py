"""The CUDA source of attention of wide heads: which layers have it, and its results by fibers.

They take the place of a GPU's threads. Bits, whose order of sums is the tensor cores', are compared
on a GPU.
"""

import shutil
import subprocess
from ctypes import CDLL, c_bool, c_void_p
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.cuda_source import as_text
from eagle_aot.triton_kernels.device import H100
from eagle_aot.triton_kernels.sdpa_splitk import tiling
from support.kernels.compiled import (
    Launch,
    Unlaunched,
    compiled_by_nvcc,
    compiled_for_cpu,
    declared_names,
    launches,
    local_memory,
    rows_attention,
)
from support.kernels.sdpa_cases import Forward, Layer, Text, chain, forward, relative_error, tree

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
needs_compilers = pytest.mark.skipif(
    None in (shutil.which("nvcc"), shutil.which("g++")), reason="needs nvcc and g++"
)

SOURCE = Path(tiling.__file__).with_name("wide.cu")
SHARED, SLOTS = 227 << 10, 528
LAYER = Layer(16, 2, 512, 0, torch.bfloat16, by_token=True)
FIVES = Layer(10, 2, 512, 0, torch.bfloat16)
PAIRS = Layer(4, 2, 512, 0, torch.bfloat16)
SEVENS = Layer(7, 1, 512, 0, torch.bfloat16)
FEW = [-1, 0, 0, 1, 2, 2, -1, 6]
SCATTERED = [5, 9, 0, 20, 3, 2, 1, 7]


def compiled(case: Forward, splits: int, directory: Path) -> CDLL:
    """Compile `attend` of `sdpa_wide_on_cpu.cpp` for a case's layer and caches."""
    layer, (of_head, _, pitch, _) = case.layer, case.k.stride()
    macros = {"HEADS": layer.heads, "GROUP": layer.heads // layer.kv_heads, "SPLITS": splits}
    macros |= {"CHUNK": tiling.WIDE.chunk, "OF_HEAD": of_head, "PITCH": pitch}
    macros |= {"SHARED": SHARED, "LAUNCHED": 32 * tiling.WIDE.warps}
    scale = {"SCALE": layer.scale / 0.6931471805599453}
    return compiled_for_cpu("sdpa_wide_on_cpu.cpp", SOURCE, as_text({**macros, **scale}), directory)


def run(case: Forward, splits: int, library: CDLL, seed: int) -> Tensor:
    """Return what the kernel's parts add up to, [B, T, heads, D]."""
    batch, rows, heads, head_dim = case.q.shape
    items = batch * rows * heads
    partial = torch.full((splits + 1, items, head_dim), torch.nan, dtype=torch.float16)
    stats = torch.full((3, splits + 1, items), torch.nan)
    inputs = case.q, case.k, case.v, case.positions, case.sequences, case.tail
    addresses = (c_void_p * 6)(*(each.data_ptr() for each in inputs))
    parts = (c_void_p(each.data_ptr()) for each in (partial, stats))
    kv_heads = case.layer.kv_heads
    row_tiles = -(-rows // (tiling.WIDE.row_tile // (heads // kv_heads)))
    grid = row_tiles * kv_heads, 1 + splits, batch
    sizes = items, rows * heads, case.k.stride(1) // head_dim
    library.attend.restype = c_bool
    ended = library.attend(addresses, *parts, *sizes, *grid, seed)
    assert ended, "threads wait for each other"
    return combined(case, splits, partial, stats)


def combined(case: Forward, splits: int, partial: Tensor, stats: Tensor) -> Tensor:
    """Add up the chunks and the tail of each row, in float64."""
    out = torch.zeros(case.q.shape, dtype=torch.float64)
    shape = splits + 1, *case.q.shape[:3]
    units, (most, sums, peaks) = partial.view(*shape, -1), stats.view(3, *shape)
    sizes = tiling.Tiling(64, 64, tiling.WIDE.chunk, splits, 16, 2)
    for b, text in enumerate(case.texts):
        for row in range(len(text.rows)):
            reach = text.position(row) - tiling.TAIL
            length = tiling.chunk_length(reach, sizes) if reach >= 0 else 1
            of = [s for s in range(splits) if s * length <= reach] + [splits]
            weights = (most[of, b, row].double() - most[of, b, row].amax(0)).exp2()
            scaled = (weights * peaks[of, b, row])[..., None] * units[of, b, row].double()
            out[b, row] = scaled.sum(0) / (weights * sums[of, b, row]).sum(0)[:, None]
    return out


@needs_compilers
@pytest.mark.parametrize(
    ("layer", "splits", "texts", "rows"),
    [
        (LAYER, 2, (chain(0, 1), chain(90, 1)), 1),  # a text's first token; columns for one row
        (LAYER, 2, (chain(110, 5), chain(13, 3)), 5),  # chunks of two lengths, padding
        (LAYER, 2, (tree(83, FEW, SCATTERED), tree(20, FEW[:3])), 9),  # two tiles of rows
        (FIVES, 2, (chain(500, 12),), 12),  # five heads share keys; many tiles
        (PAIRS, 1, (chain(40, 34), chain(7, 20)), 34),  # a tile of 32 rows, chunks of three lengths
        (SEVENS, 3, (tree(70, FEW, SCATTERED),), 8),
    ],
    ids=["one row", "two lengths", "trees", "many tiles", "32 rows", "seven heads"],
)
def test_results_are_those_of_attention(
    layer: Layer, splits: int, texts: tuple[Text, ...], rows: int, tmp_path: Path
) -> None:
    """What no row sees is NaN, and so is memory that nothing was written to."""
    case = forward(layer, *texts, rows=rows, slots=SLOTS, caches=range(len(texts))[::-1])
    library = compiled(case, splits, tmp_path)
    first = run(case, splits, library, 0)
    assert relative_error(first, case.expected()) < 5e-3
    assert torch.equal(run(case, splits, library, 1), first), (
        "results depend on the order of threads"
    )
    for row in {0, len(texts[0].rows) - 1}:
        one = forward(layer, texts[0].only(row), slots=SLOTS, caches=[len(texts) - 1])
        assert torch.equal(run(one, splits, library, 2)[0, 0], first[0, row])


def wide_launch(monkeypatch: pytest.MonkeyPatch, layer: Layer) -> Launch:
    """Return the first kernel call of an export for an H100."""
    pytest.importorskip("triton", reason="triton is not installed")
    from eagle_aot.triton_kernels import cuda_source
    from eagle_aot.triton_kernels.sdpa_splitk import kernel, wide

    monkeypatch.setattr(cuda_source, "is_compiling", lambda: True)
    monkeypatch.setattr(tiling, "capability", lambda: H100)
    monkeypatch.setattr(kernel, "wrap_triton", Unlaunched)
    sizes = layer.heads, layer.kv_heads, layer.head_dim
    (call,) = launches(monkeypatch, wide, lambda: rows_attention(kernel, *sizes), H100)
    return call


@needs_nvcc
@pytest.mark.parametrize("layer", [Layer(32, 4, 512, 0, torch.bfloat16), FIVES], ids=str)
def test_the_source_is_compiled_in_place_of_a_triton_kernel(
    layer: Layer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call = wide_launch(monkeypatch, layer)
    assert call.kernel.arg_names == declared_names(SOURCE, call.kernel)
    binary = compiled_by_nvcc(call, monkeypatch)
    assert binary.metadata.name == "sdpa_wide_kernel"
    assert (binary.metadata.num_warps, binary.metadata.shared) == (16, SHARED)
    assert local_memory(binary.asm["cubin"], tmp_path) == 0
    assert "wgmma.mma_async.sync.aligned.m64n8k16" in binary.asm["ptx"]


@needs_nvcc
def test_the_assembler_adds_no_waits_between_products(tmp_path: Path) -> None:
    """It does where it cannot see that registers of products in flight are left alone."""
    sizes = "HEADS=32 GROUP=8 SPLITS=32 CHUNK=16 OF_HEAD=512 PITCH=2048 SCALE=0.06"
    macros = [f"-D{each}" for each in (*sizes.split(), f"SHARED={SHARED}", "LAUNCHED=512")]
    flags = "-cubin", "-arch=sm_90a", "-allow-unsupported-compiler", "-O3", "-std=c++17"
    command = ["nvcc", *flags, "-Xptxas", "-v", *macros, "-o", str(tmp_path / "x"), str(SOURCE)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert "Used 128 registers" in said and "C75" not in said


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window", "entries", "expected"),
    [
        (32, 4, 512, 0, torch.bfloat16, True),
        (8, 1, 512, 0, torch.bfloat16, True),
        (4, 2, 512, 0, torch.bfloat16, True),
        (4, 4, 512, 0, torch.bfloat16, False),  # 64 rows of a tile
        (16, 1, 512, 0, torch.bfloat16, False),  # four rows of a tile
        (32, 4, 256, 0, torch.bfloat16, False),
        (32, 4, 512, 1024, torch.bfloat16, False),
        (32, 4, 512, 0, torch.int8, False),
        (32, 4, 512, 0, torch.float16, False),
    ],
)
def test_which_layers_the_source_serves(
    heads: int, kv_heads: int, head_dim: int, window: int, entries: torch.dtype, expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    layer = heads, kv_heads, head_dim, window, torch.bfloat16, entries
    for capability, serves in ((H100, expected), ((8, 0), False), ((10, 0), False)):
        monkeypatch.setattr(tiling, "capability", lambda found=capability: found)
        assert tiling.is_wide(*layer) is serves


def test_a_program_launches_one_of_both_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export for an H100 the CUDA source, all others Triton's."""
    call = wide_launch(monkeypatch, LAYER)
    assert call.kernel.__name__ == "sdpa_wide_kernel" and "sdpa_splitk/wide.cu" in str(call)
    from eagle_aot.triton_kernels.sdpa_splitk import kernel

    monkeypatch.undo()
    calls = launches(monkeypatch, kernel, lambda: rows_attention(kernel, 16, 2, 512), H100)
    names = [each.kernel.__name__ for each in calls]
    assert names == ["sdpa_splitk_kernel", "sdpa_combine_kernel"]
