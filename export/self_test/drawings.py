"""Pictures that are made up for a self-test: waves of colour and a few shapes, by a seed."""

from typing import NamedTuple

import torch
from torch import Tensor

from eagle_aot.targets.gemma4.vision import VisionConfig


class Drawing(NamedTuple):
    """As transformers' processor hands a picture to the tower: `pixels` float32 [1, P, 3 * S * S]
    between 0 and 1 in patches of S pixels square, their `places` int64 [1, P, 2] as column and row,
    -1 for padding; `rows` of a prompt are the picture's."""

    pixels: Tensor
    places: Tensor
    rows: int


def drawing(config: VisionConfig, limit: int, seed: int) -> Drawing:
    """The largest square of at most `limit` rows."""
    side = int(limit**0.5) * config.pooling_kernel_size
    image = drawn(side * config.patch_size, seed)
    patches = image.unflatten(2, (side, -1)).unflatten(1, (side, -1))  # [3, side, S, side, S]
    padding = config.patches(limit) - side**2
    pixels = patches.permute(1, 3, 2, 4, 0).reshape(side**2, -1)
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    places = torch.stack((column, row), dim=-1).flatten(0, 1)
    pixels = torch.cat((pixels, pixels.new_zeros(padding, pixels.shape[1])))
    places = torch.cat((places, places.new_full((padding, 2), -1)))
    return Drawing(pixels[None], places[None], (side // config.pooling_kernel_size) ** 2)


def drawn(side: int, seed: int) -> Tensor:
    """float32 [3, side, side]."""
    rng = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(*[torch.linspace(0, 1, side)] * 2, indexing="ij")
    waves = torch.rand(3, 3, generator=rng).view(3, 3, 1, 1) * 12
    image = 0.5 + 0.4 * torch.sin(waves[:, 0] * x + waves[:, 1] * y + waves[:, 2])
    for across, down, size, *colour in torch.rand(4, 6, generator=rng).tolist():
        inside = (x - across) ** 2 + (y - down) ** 2 < (0.05 + 0.2 * size) ** 2
        image = torch.where(inside, torch.tensor(colour).view(3, 1, 1), image)
    return image
