"""Attention of prompts on a GPU, at real shapes: against float64, and bit by bit."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from eagle_aot.triton_kernels.sdpa_prompt import sdpa_prompt
from support.kernels.prompt_cases import Prompt
from support.kernels.sdpa_cases import Layer, relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

ERROR = {torch.bfloat16: 5e-3, torch.float16: 1e-3}
LAYERS = [
    Layer(32, 4, 512, 0, torch.bfloat16),  # Gemma 4 31B, full layers
    Layer(32, 16, 256, 1024, torch.bfloat16),  # Gemma 4 31B, sliding layers
    Layer(32, 8, 128, 0, torch.bfloat16),
    Layer(28, 4, 128, 0, torch.bfloat16),  # seven heads share their keys
    Layer(8, 1, 64, 0, torch.float16),
    Layer(4, 2, 64, 64, torch.bfloat16),  # the shipped target
    Layer(4, 2, 16, 20, torch.bfloat16),
    Layer(32, 4, 512, 0, torch.bfloat16, int8=True),
    Layer(32, 16, 256, 1024, torch.bfloat16, int8=True),
    Layer(32, 16, 256, 1024, torch.bfloat16, int8=True, by_token=True),
    Layer(32, 4, 512, 0, torch.bfloat16, by_token=True),
    Layer(32, 8, 128, 0, torch.bfloat16, int8=True),
]
SLOTS = 32864
CUTS = (0, 1, 64, 65, 128, 200, 329, 512, 600)


def prompt(layer: Layer, context: int, rows: int) -> Prompt:
    """Make a prompt's chunk; a ring holds at least 640 rows."""
    ring = layer.window + max(layer.window, 640) if layer.window else 0
    return Prompt(layer, context, rows, slots=SLOTS, device="cuda", ring=ring)


@pytest.mark.parametrize("context", [0, 1, 17, 511, 1024, 4096, 30000])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_kernel_matches_float64_attention(layer: Layer, context: int) -> None:
    case = prompt(layer, context, 300)
    output = sdpa_prompt(*case.arguments())[:, ::7]
    assert relative_error(output, case.expected(every=7)) < ERROR[layer.dtype]


@pytest.mark.parametrize("context", [0, 17, 1024, 4096])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_rows_of_an_image_see_all_of_it(layer: Layer, context: int) -> None:
    case = replace(prompt(layer, context, 300), images=((3, 9), (14, 294)))
    output = sdpa_prompt(*case.arguments(), case.last)[:, ::7]
    assert relative_error(output, case.expected(every=7)) < ERROR[layer.dtype]
    rest = replace(prompt(layer, context + 200, 100), images=((0, 94),))
    whole = sdpa_prompt(*case.arguments(), case.last)[:, 200:]
    assert torch.equal(sdpa_prompt(*rest.arguments(), rest.last), whole)


@pytest.mark.parametrize("context", [0, 100, 1500, 20000])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_rows_bits_do_not_depend_on_its_chunk(layer: Layer, context: int) -> None:
    whole = sdpa_prompt(*prompt(layer, context, CUTS[-1]).arguments())
    for first, after in pairwise(CUTS):
        cut = sdpa_prompt(*prompt(layer, context + first, after - first).arguments())
        assert torch.equal(cut, whole[:, first:after])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("hidden", [6e4, math.inf])
def test_hidden_slots_change_no_bit(layer: Layer, hidden: float) -> None:
    clean = sdpa_prompt(*prompt(layer, 900, 200).arguments())
    case = replace(prompt(layer, 900, 200), hidden=hidden)
    assert torch.equal(sdpa_prompt(*case.arguments()), clean)
    elsewhere = replace(case, sequence=1, sequences=2, slots=2000)
    assert torch.equal(sdpa_prompt(*elsewhere.arguments()), clean)
