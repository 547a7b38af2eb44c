"""Attention of prompts in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.sdpa_prompt import kernel
from eagle_aot.triton_kernels.sdpa_prompt.tiling import PromptTiling
from support.interpreted.as_a_gpu import compute_as_a_gpu
from support.kernels.prompt_cases import Prompt
from support.kernels.sdpa_cases import Layer, relative_error

ERROR = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}

LAYERS = [
    Layer(4, 2, 64, 0, torch.float32),
    Layer(3, 3, 16, 0, torch.float32),  # every head its own keys
    Layer(7, 1, 32, 0, torch.float32),  # rows of a group that are no power of two
    Layer(8, 2, 128, 0, torch.bfloat16),
    Layer(2, 1, 512, 0, torch.bfloat16),
    Layer(4, 2, 64, 24, torch.float32),
    Layer(2, 1, 16, 37, torch.float32),  # a window and a ring that end inside tiles of keys
    Layer(2, 1, 16, 9, torch.float32),  # a window shorter than a tile of rows
    Layer(4, 2, 64, 64, torch.bfloat16),
]
TILES = PromptTiling(16, 16, 4, 1)
BEHIND = [0, 1, 15, 16, 17, 200]
KINDS = [LAYERS[2], LAYERS[4], LAYERS[5], LAYERS[7], LAYERS[8]]
"""Without a window and with one, longer and shorter than a tile, in float32 and in half of it."""

PLACES = [
    (layer, behind)
    for layer in LAYERS
    for behind in (BEHIND if layer in (LAYERS[2], LAYERS[6], LAYERS[8]) else [0, 17])
]
"""One layer without a window meets a length as all do, and so does one with; what ends inside tiles
of keys meets all lengths as well."""


@pytest.fixture(autouse=True, scope="module")
def as_on_a_gpu() -> Iterator[None]:
    """Arithmetic as there, the kernel unwrapped, and fresh memory NaN."""
    with pytest.MonkeyPatch.context() as patch:
        compute_as_a_gpu(patch)
        patch.setattr(kernel, "wrap_triton", lambda interpreted: interpreted)
        torch.use_deterministic_algorithms(True)
        yield
        torch.use_deterministic_algorithms(False)


def attend(prompt: Prompt, tiles: PromptTiling = TILES) -> Tensor:
    last = prompt.last if prompt.pictures else None
    return kernel.launch(*prompt.arguments(), tiles, last)


@pytest.mark.parametrize(("layer", "behind"), PLACES, ids=str)
def test_it_is_attention(layer: Layer, behind: int) -> None:
    prompt = Prompt(layer, behind, 37)
    output = attend(prompt)
    assert output.shape == prompt.arguments()[0].shape and output.dtype == layer.dtype
    assert relative_error(output, prompt.expected()) < ERROR[layer.dtype]


PICTURES = ((3, 5), (9, 36))
"""Within a tile of keys, and over more than a window and several tiles of rows."""


@pytest.mark.parametrize("behind", [0, 200])
@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[5], LAYERS[7], LAYERS[8]], ids=str)
def test_rows_of_a_picture_see_all_of_it(layer: Layer, behind: int) -> None:
    prompt = Prompt(layer, behind, 37, pictures=PICTURES)
    output = attend(prompt)
    assert relative_error(output, prompt.expected()) < ERROR[layer.dtype]
    for pictures in (PICTURES[1:], ()):
        other = attend(replace(prompt, pictures=pictures))
        same = (output == other).flatten(2).all(-1)[0]
        changed = torch.zeros(37, dtype=torch.bool)
        for first, after in set(PICTURES) - set(pictures):
            changed[first : after - 1] = True  # the last row of a picture has none behind it
        assert torch.equal(same, ~changed)


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[5]], ids=str)
def test_the_rest_of_a_picture_has_the_bits_of_the_whole(layer: Layer) -> None:
    """Where all of it is in the cache."""
    whole = attend(Prompt(layer, 40, 60, pictures=((10, 50),)))
    rest = attend(Prompt(layer, 70, 30, pictures=((0, 20),)))
    assert torch.equal(rest, whole[:, 30:])


@pytest.mark.parametrize("layer", [LAYERS[1], LAYERS[6], *KINDS], ids=str)
def test_a_rows_bits_do_not_depend_on_its_chunk(layer: Layer) -> None:
    """Wherever a text is cut, inside a tile of keys or at its end."""
    whole = attend(Prompt(layer, 40, 60))
    for first, behind in ((0, 1), (0, 8), (3, 41), (7, 60), (24, 40), (59, 60)):
        cut = attend(Prompt(layer, 40 + first, behind - first))
        assert torch.equal(cut, whole[:, first:behind])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_number_of_rows_of_a_tile_changes_no_bit(layer: Layer) -> None:
    prompt = Prompt(layer, 77, 50)
    assert torch.equal(attend(prompt, PromptTiling(64, 16, 4, 1)), attend(prompt))


@pytest.mark.parametrize("layer", KINDS, ids=str)
def test_what_no_row_sees_changes_no_bit(layer: Layer) -> None:
    clean, huge, infinite = (
        attend(Prompt(layer, 90, 30, hidden=hidden)) for hidden in (math.nan, 6e4, math.inf)
    )
    assert torch.equal(huge, clean) and torch.equal(infinite, clean)


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[5]], ids=str)
def test_which_of_the_caches_is_read_and_how_long_it_is_changes_no_bit(layer: Layer) -> None:
    alone = attend(Prompt(layer, 33, 20))
    assert torch.equal(attend(Prompt(layer, 33, 20, sequence=2, sequences=4, slots=999)), alone)


def test_rows_outside_the_output_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs at the start of a buffer: whatever follows keeps its NaN."""
    layer = LAYERS[2]
    prompt = Prompt(layer, 20, 11)
    buffer = torch.full((8192,), torch.nan)
    allocate = Tensor.new_empty

    def from_buffer(x: Tensor, shape: int | torch.Size, **options: object) -> Tensor:
        if shape != (1, 11, 7, 32):  # the interpreter's own
            return allocate(x, shape, **options)
        return buffer[: 11 * 7 * 32].view(shape)

    monkeypatch.setattr(Tensor, "new_empty", from_buffer)
    output = attend(prompt)
    assert output.data_ptr() == buffer.data_ptr()
    assert not output.isnan().any() and buffer[11 * 7 * 32 :].isnan().all()
