"""Rows of a prompt's chunk that are an image's: what the program is given in place of tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eagle_aot.artifact import ImageInputs, encode_image
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.images.prompt_image import ImagePatches, PlacedImage, PromptImage
from eagle_aot.runtime_runner.program.executor import Executor


class InputEmbeds(NamedTuple):
    """Rows of a chunk: `embeddings` [1, T, H], and `last_visible` int64 [T], the position up to
    which an image's row sees, -1 for a token's."""

    embeddings: Tensor
    last_visible: Tensor


class GivenRows:
    """Of an artifact that takes images. One is encoded when its chunk is run, and then forgotten:
    rows that a cache holds need none of it."""

    def __init__(self, executor: Executor, images: ImageInputs) -> None:
        self._executor, self._images = executor, images
        self._dtype = torch.bfloat16 if executor.device.type == "cuda" else torch.float32

    def of(self, chunk: Chunk, images: Sequence[PlacedImage]) -> InputEmbeds:
        """The rows of a chunk, padding included."""
        count, device = len(chunk) + chunk.padding, self._executor.device
        hidden = self._images.hidden_size
        embeddings = torch.zeros(1, count, hidden, dtype=self._dtype, device=device)
        last = torch.full((count,), -1, dtype=torch.int64, device=device)
        for placed in images:
            start, stop = placed.span
            here = slice(max(start, chunk.start), min(stop, chunk.stop))
            if here.start >= here.stop:
                continue
            rows = self.rows(placed.image)[here.start - start : here.stop - start]
            inside = slice(here.start - chunk.start, here.stop - chunk.start)
            embeddings[0, inside] = rows.to(device, self._dtype)
            own = torch.arange(here.start, here.stop, device=device)
            last[inside] = stop - 1 if self._images.sees_whole else own
        return InputEmbeds(embeddings, last)

    def rows(self, image: PromptImage) -> Tensor:
        """All of an image's, [count, H]."""
        content, device = image.content, self._executor.device
        if not isinstance(content, ImagePatches):
            return content
        given = content.pixels.to(device), content.positions.to(device)
        (rows,) = self._executor.run(encode_image(content.limit), *given)
        return rows[0, : image.count]
