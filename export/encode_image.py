"""`encode_image_N`: a picture becomes up to N rows of a prompt, one method for each N."""

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


class EncodeImage(nn.Module):
    """pixel_values float32 [1, P, 3 * S * S] and position_ids int64 [1, P, 2] of P patches of S
    pixels square, as transformers' processor gives them.

    Returns embeddings [1, N, H], of which the first are the picture's.
    """

    def __init__(self, vision: Gemma4Vision, streams_keys: bool) -> None:
        super().__init__()
        self.vision, self.streams_keys = vision, streams_keys

    def forward(self, pixel_values: Tensor, position_ids: Tensor) -> Tensor:
        return self.vision(pixel_values, position_ids, self.streams_keys)


def encoding(pair: Pair, lengths: MethodLengths, streams_keys: bool) -> dict[str, MethodSpec]:
    """One for each number of rows that a picture may take; none without a tower.

    With `streams_keys` patches attend through the operator made for prompts, where it serves them.
    """
    if pair.vision is None:
        return {}
    module = EncodeImage(pair.vision, streams_keys)
    counts = lengths.image_tokens
    return {encode_image(count): encode_spec(module, count) for count in counts}


def encode_spec(module: EncodeImage, count: int) -> MethodSpec:
    """Of pictures of up to `count` rows; of a size that does not vary."""
    config = module.vision.config
    patches = config.patches(count)
    places = torch.full((1, patches, 2), -1)
    places[0, : config.patches(1)] = 0
    return MethodSpec(
        module=module,
        inputs={
            "pixel_values": (torch.zeros(1, patches, config.patch_values), {}),
            "position_ids": (places, {}),
        },
        outputs={"embeddings": (FEATURES, (1, count, WIDTH))},
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
"""What transformers' tower is written in and a GPU's program has no kernel for."""
