"""Rows of a prompt that belong to images: the program takes embeddings for them, not tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eagle_aot.artifact import ImageInputs, encode_image
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.images.prompt_image import ImagePatches, PlacedImage, PromptImage
from eagle_aot.runtime_runner.program.executor import Executor


class InputEmbeds(NamedTuple):
    """Rows of a chunk: `embeddings` [1, T, H], and `last_visible` int64 [T], the last position that
    an image's row sees, -1 for a token's."""

    embeddings: Tensor
    last_visible: Tensor


class ImageEmbedder:
    """Embeds the images of prompts, for an artifact that takes images.

    An image is encoded when its chunk runs, and its rows are not kept: a reused row needs none.
    """

    def __init__(self, executor: Executor, images: ImageInputs) -> None:
        self._executor, self._images = executor, images
        self._dtype = torch.bfloat16 if executor.device.type == "cuda" else torch.float32

    def embed(self, chunk: Chunk, images: Sequence[PlacedImage]) -> InputEmbeds:
        """Return the rows of a chunk, padding included; `images` may lie outside it."""
        count, device = len(chunk) + chunk.padding, self._executor.device
        hidden = self._images.hidden_size
        embeddings = torch.zeros(1, count, hidden, dtype=self._dtype, device=device)
        last_visible = torch.full((count,), -1, dtype=torch.int64, device=device)
        for placed in images:
            first, end = placed.span
            start, stop = max(first, chunk.start), min(end, chunk.stop)
            if start >= stop:
                continue
            rows = self.rows(placed.image)[start - first : stop - first]
            inside = slice(start - chunk.start, stop - chunk.start)
            embeddings[0, inside] = rows.to(device, self._dtype)
            positions = torch.arange(start, stop, device=device)
            last_visible[inside] = end - 1 if self._images.sees_whole else positions
        return InputEmbeds(embeddings, last_visible)

    def rows(self, image: PromptImage) -> Tensor:
        """Return all rows of an image, [count, H]."""
        content, device = image.content, self._executor.device
        if not isinstance(content, ImagePatches):
            return content
        pixels, positions = content.pixels.to(device), content.positions.to(device)
        (rows,) = self._executor.run(encode_image(content.limit), pixels, positions)
        return rows[0, : image.count]
