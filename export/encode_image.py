"""`encode_image_N`: turns an image into up to N rows of a prompt, one method for each N."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from eagle_aot.artifact import encode_image
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import FEATURES, WIDTH, MethodSpec
from eagle_aot.export.pair import Pair
from eagle_aot.targets.gemma4.vision import Gemma4Vision

ATEN = torch.ops.aten


class EncodeImageMethod(nn.Module):
    """Encodes an image: pixel_values float32 [1, P, 3 * S * S] and position_ids int64 [1, P, 2] of
    P patches of S pixels square, as transformers' processor gives them.

    Returns embeddings [1, N, H]; the image's are the first, the rest is padding.
    """

    def __init__(self, vision: Gemma4Vision, use_prompt_kernel: bool) -> None:
        super().__init__()
        self.vision, self.use_prompt_kernel = vision, use_prompt_kernel

    def forward(self, pixel_values: Tensor, position_ids: Tensor) -> Tensor:
        return self.vision(pixel_values, position_ids, self.use_prompt_kernel)


def encode_image_specs(
    pair: Pair, lengths: MethodLengths, use_prompt_kernel: bool
) -> dict[str, MethodSpec]:
    """Return a method for each number of rows that an image may take; none without an encoder.

    With `use_prompt_kernel` patches attend through the project's operator for prompts if it has a
    kernel for them.
    """
    if pair.vision is None:
        return {}
    module = EncodeImageMethod(pair.vision, use_prompt_kernel)
    return {encode_image(rows): encode_image_spec(module, rows) for rows in lengths.image_tokens}


def encode_image_spec(module: EncodeImageMethod, rows: int) -> MethodSpec:
    """Return the method for images of up to `rows` rows; no dimension of it varies."""
    config = module.vision.config
    patches = config.patches(rows)
    position_ids = torch.full((1, patches, 2), -1)
    position_ids[0, : config.patches(1)] = 0
    return MethodSpec(
        module=module,
        inputs={
            "pixel_values": (torch.zeros(1, patches, config.patch_values), {}),
            "position_ids": (position_ids, {}),
        },
        outputs={"embeddings": (FEATURES, (1, rows, WIDTH))},
        writes=frozenset(),
        min_rows=patches,
        max_rows=patches,
        few_rows=False,
        decompositions=DECOMPOSITIONS,
    )


def _slices(x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [
        ATEN.slice.Tensor(x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)
    ]


def _one_hot(x: Tensor, count: int) -> Tensor:
    return (x.unsqueeze(-1) == torch.arange(count, device=x.device)).to(torch.int64)


def _largest(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return x.amax(dim, keepdim), x.argmax(dim, keepdim)


DECOMPOSITIONS: Mapping[OpOverload, Callable[..., Any]] = {
    ATEN.split_with_sizes.default: _slices,
    ATEN.one_hot.default: _one_hot,
    ATEN.max.dim: _largest,
}
"""Operators of transformers' encoder for which the CUDA backend has no kernel."""
