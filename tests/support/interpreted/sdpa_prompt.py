"""Attention of prompts in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.sdpa_prompt import kernel
from eagle_aot.triton_kernels.sdpa_prompt.tiling import PromptTiling
from support.interpreted.as_a_gpu import allocate_output
from support.kernels.prompt_cases import Prompt
from support.kernels.sdpa_cases import Layer, relative_error

ERROR = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}

LAYERS = [
    Layer(4, 2, 64, 0, torch.float32),
    Layer(3, 3, 16, 0, torch.float32),  # every head its own keys
    Layer(7, 1, 32, 0, torch.float32),  # a group whose number of rows is not a power of two
    Layer(8, 2, 128, 0, torch.bfloat16),
    Layer(2, 1, 512, 0, torch.bfloat16),
    Layer(4, 2, 64, 24, torch.float32),
    Layer(2, 1, 16, 37, torch.float32),  # a window and a ring that end inside tiles of keys
    Layer(2, 1, 16, 9, torch.float32),  # a window shorter than a tile of rows
    Layer(4, 2, 64, 64, torch.bfloat16),
    Layer(4, 1, 64, 0, torch.bfloat16, int8=True),
    Layer(4, 2, 64, 64, torch.bfloat16, int8=True),
    Layer(6, 3, 64, 0, torch.bfloat16, by_token=True),
    Layer(4, 2, 64, 64, torch.bfloat16, int8=True, by_token=True),
]
TILES = PromptTiling(16, 16, 4, 1)
CONTEXTS = [0, 1, 15, 16, 17, 200]
KINDS = [LAYERS[2], LAYERS[4], LAYERS[5], *LAYERS[7:]]
"""Layers without a window and with one, longer and shorter than a tile, in float32, 16 and 8
bits."""

PROMPTS = [
    (layer, context)
    for layer in LAYERS
    for context in (CONTEXTS if layer in (LAYERS[2], LAYERS[6]) else [0, 17])
]
"""All contexts for one layer without a window, and one whose window and ring end inside tiles of
keys; few for the others."""


def attend(prompt: Prompt, tiles: PromptTiling = TILES) -> Tensor:
    """Return the kernel's output [1, T, heads, D]."""
    last = prompt.last if prompt.images else None
    return kernel.launch(*prompt.arguments(), tiles, last)


@pytest.mark.parametrize(("layer", "context"), PROMPTS, ids=str)
def test_the_kernel_matches_float64_attention(layer: Layer, context: int) -> None:
    prompt = Prompt(layer, context, 37)
    output = attend(prompt)
    assert output.shape == prompt.arguments()[0].shape and output.dtype == layer.dtype
    assert relative_error(output, prompt.expected()) < ERROR[layer.dtype]


IMAGES = ((3, 5), (9, 36))
"""Row ranges within a tile of keys, and longer than a window and several tiles of rows."""


@pytest.mark.parametrize("context", [0, 200])
@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[5], LAYERS[7], LAYERS[8]], ids=str)
def test_rows_of_an_image_see_all_of_it(layer: Layer, context: int) -> None:
    prompt = Prompt(layer, context, 37, images=IMAGES)
    output = attend(prompt)
    assert relative_error(output, prompt.expected()) < ERROR[layer.dtype]
    for images in (IMAGES[1:], ()):
        same = (output == attend(replace(prompt, images=images))).flatten(2).all(-1)[0]
        changed = torch.zeros(37, dtype=torch.bool)
        for first, after in set(IMAGES) - set(images):
            changed[first : after - 1] = True  # the last row of an image sees no later row
        assert torch.equal(same, ~changed)


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[5]], ids=str)
def test_an_image_cut_by_a_chunk_has_the_bits_of_the_whole(layer: Layer) -> None:
    whole = attend(Prompt(layer, 40, 60, images=((10, 50),)))
    assert torch.equal(attend(Prompt(layer, 70, 30, images=((0, 20),))), whole[:, 30:])


@pytest.mark.parametrize("layer", [LAYERS[1], LAYERS[6], *KINDS], ids=str)
def test_a_rows_bits_do_not_depend_on_its_chunk(layer: Layer) -> None:
    whole = attend(Prompt(layer, 40, 60))
    for first, end in ((0, 8), (3, 41), (59, 60)):
        cut = attend(Prompt(layer, 40 + first, end - first))
        assert torch.equal(cut, whole[:, first:end])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_tile_size_changes_no_bit(layer: Layer) -> None:
    prompt = Prompt(layer, 77, 50)
    assert torch.equal(attend(prompt, PromptTiling(64, 16, 4, 1)), attend(prompt))


@pytest.mark.parametrize("layer", KINDS, ids=str)
def test_hidden_slots_change_no_bit(layer: Layer) -> None:
    clean, huge, infinite = (
        attend(Prompt(layer, 90, 30, hidden=hidden)) for hidden in (math.nan, 6e4, math.inf)
    )
    assert torch.equal(huge, clean) and torch.equal(infinite, clean)


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[5]], ids=str)
def test_the_cache_index_and_length_change_no_bit(layer: Layer) -> None:
    alone = attend(Prompt(layer, 33, 20))
    assert torch.equal(attend(Prompt(layer, 33, 20, sequence=2, sequences=4, slots=999)), alone)


def test_memory_after_the_output_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = Prompt(LAYERS[2], 20, 11)
    buffer = torch.full((8192,), torch.nan)
    allocate_output(monkeypatch, buffer, (1, 11, 7, 32))
    output = attend(prompt)
    assert output.data_ptr() == buffer.data_ptr()
    assert not output.isnan().any() and buffer[11 * 7 * 32 :].isnan().all()
