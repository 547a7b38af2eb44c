"""The attention kernels in Triton's interpreter, on a CPU: run by `test_sdpa_kernel.py`."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.sdpa_splitk import kernel
from eagle_aot.triton_kernels.sdpa_splitk.tiling import Tiling, ring_splits, row_tile
from support.interpreted_kernels import compute_as_a_gpu
from support.sdpa_cases import Layer, relative_error

ERROR = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}

LAYERS = [
    Layer(4, 2, 64, 0, torch.float32),
    Layer(3, 3, 16, 0, torch.float32),  # every head its own keys
    Layer(7, 1, 32, 0, torch.float32),  # rows of a group that are no power of two
    Layer(8, 2, 128, 0, torch.bfloat16),
    Layer(2, 1, 256, 0, torch.float16),
    Layer(2, 1, 512, 0, torch.bfloat16),
    Layer(4, 2, 64, 24, torch.float32),
    Layer(2, 1, 16, 9, torch.float32),  # chunks and tiles that end inside the ring
    Layer(4, 2, 64, 64, torch.bfloat16),
]
NAN, HUGE = math.nan, 3e38
SLOTS = 420


@pytest.fixture(autouse=True)
def arithmetic_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    compute_as_a_gpu(monkeypatch)


@pytest.fixture(autouse=True)
def launched_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 wraps compiled kernels only."""
    monkeypatch.setattr(kernel, "wrap_triton", lambda interpreted: interpreted)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes milliseconds for each."""
    monkeypatch.setattr(kernel, "COMBINE_D", 128)


@pytest.fixture(autouse=True)
def fresh_memory_holds_nan() -> Iterator[None]:
    """What a kernel allocates and forgets to write is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def tiling(layer: Layer) -> Tiling:
    """Small chunks: of 16 keys up to position 63, then of 32, 48, ..."""
    splits = ring_splits(layer.window, 16) if layer.window else 4
    return Tiling(row_tile(layer.heads // layer.kv_heads), 16, 16, splits, 4, 2)


def attended(layer: Layer, positions: list[int], *, slots: int = SLOTS, **cache: float) -> Tensor:
    """All rows at `positions`, from a cache whose other slots hold `hidden`."""
    k, v = layer.cache(positions, slots, cache.get("hidden", NAN))
    return launch(layer, layer.queries(len(positions)), k, v, positions)


def launch(layer: Layer, q: Tensor, k: Tensor, v: Tensor, positions: list[int]) -> Tensor:
    pos = torch.tensor(positions)
    return kernel.launch(q, k, v, pos, layer.scale, layer.window, tiling(layer))


def test_fresh_memory_holds_nan() -> None:
    assert torch.ones(2).new_empty(100, dtype=torch.bfloat16).isnan().all()


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("anchor", [0, 9, 16, 25, 60, 200, 399])
def test_it_is_attention(layer: Layer, anchor: int) -> None:
    """Behind and around the ends of chunks, of rings and of stretches of one chunk length."""
    positions = list(range(anchor, anchor + 8))
    q, (k, v) = layer.queries(8), layer.cache(positions, SLOTS, NAN)
    output = launch(layer, q, k, v, positions)
    assert output.shape == q.shape and output.dtype == q.dtype
    assert relative_error(output, layer.expected(q, k, v, positions)) < ERROR[layer.dtype]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("anchor", [0, 12, 60, 124])
def test_a_rows_bits_do_not_depend_on_its_neighbours(layer: Layer, anchor: int) -> None:
    positions = list(range(anchor, anchor + 8))
    q, (k, v) = layer.queries(8), layer.cache(positions, SLOTS, NAN)
    together = launch(layer, q, k, v, positions)
    for rows in (2, 5):
        some = launch(layer, q[:, :rows], k, v, positions[:rows])
        assert torch.equal(some, together[:, :rows])
    for row in (0, 3, 7):
        alone = launch(layer, q[:, row : row + 1], k, v, positions[row : row + 1])
        assert torch.equal(alone[:, 0], together[:, row])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_rows_beyond_a_tile_are_further_tiles(layer: Layer) -> None:
    """Bit for bit what each row is alone, on both sides of where chunks become longer."""
    anchor = 45
    longest = min(40, layer.window + 1) if layer.window else 40
    positions = list(range(anchor, anchor + longest))
    q, (k, v) = layer.queries(longest), layer.cache(positions, SLOTS, NAN)
    together = launch(layer, q, k, v, positions)
    assert relative_error(together, layer.expected(q, k, v, positions)) < ERROR[layer.dtype]
    for first, behind in ((0, 9), (3, 20), (19, 20), (longest - 1, longest)):
        some = launch(layer, q[:, first:behind], k, v, positions[first:behind])
        assert torch.equal(some, together[:, first:behind])


@pytest.mark.parametrize("layer", LAYERS[:6], ids=str)
def test_the_buffers_length_changes_no_bit(layer: Layer) -> None:
    positions = [70, 71, 72]
    outputs = [attended(layer, positions, slots=slots) for slots in (73, 128, 1000)]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("hidden", [HUGE, math.inf])
def test_what_no_row_sees_changes_no_bit(layer: Layer, hidden: float) -> None:
    positions = [37, 38]
    clean = attended(layer, positions)
    assert torch.equal(attended(layer, positions, hidden=hidden), clean)


@pytest.mark.parametrize("rows", [3, 11])
def test_rows_and_heads_outside_the_output_are_not_touched(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Outputs at the start of a buffer: whatever follows keeps its NaN."""
    layer = Layer(7, 1, 32, 0, torch.float32)
    buffer = torch.full((4096,), torch.nan)
    allocate = Tensor.new_empty

    def from_buffer(x: Tensor, shape: int | tuple[int, ...], **options: object) -> Tensor:
        if shape != (1, rows, 7, 32):
            return allocate(x, shape, **options)
        return buffer[: rows * 7 * 32].view(shape)

    monkeypatch.setattr(Tensor, "new_empty", from_buffer)
    output = attended(layer, list(range(20, 20 + rows)))
    assert output.data_ptr() == buffer.data_ptr()
    assert not output.isnan().any() and buffer[rows * 7 * 32 :].isnan().all()


def test_values_of_zero_add_up_to_zero() -> None:
    """Partial sums are divided by their largest element, which is none."""
    layer = Layer(4, 2, 64, 0, torch.bfloat16)
    positions = [100, 101]
    q, (k, v) = layer.queries(2), layer.cache(positions, SLOTS, 0.0)
    output = launch(layer, q, k, torch.zeros_like(v), positions)
    assert not output.any() and not output.isnan().any()


def test_sums_far_from_one_keep_their_precision() -> None:
    """Between chunks they are kept in half precision, which reaches from 6e-8 to 65504."""
    layer = Layer(2, 1, 32, 0, torch.bfloat16)
    positions = [100]
    q, (k, v) = layer.queries(1), layer.cache(positions, SLOTS, NAN)
    for factor in (1e-9, 1e9):
        values = (v.float() * factor).bfloat16()
        expected = layer.expected(q, k, values, positions)
        assert relative_error(launch(layer, q, k, values, positions), expected) < 6e-3
