"""Images in a prompt: pixels that the program encodes, or ready rows, and their positions.

An image takes several rows of a prompt. In its token ids one image token stands for each row.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle_aot.artifact import ImageInputs
from eagle_aot.common.errors import PromptError

MAX_IMAGES = 64  # of a prompt

ImageSpan = tuple[int, int]
"""The first position of an image in a prompt, and the position after its last."""


@dataclass(frozen=True, slots=True)
class ImagePatches:
    """The patches of an image as transformers' processor gives them: `pixels` float32 [1, P, N] and
    `positions` int64 [1, P, 2], for the method that encodes at most `limit` rows."""

    pixels: Tensor
    positions: Tensor
    limit: int


@dataclass(frozen=True, eq=False, slots=True)
class PromptImage:
    """An image of `count` rows: patches that the program encodes, or rows float32 [count, H] that
    another encoder has made. Images with equal `digest`s have equal rows."""

    count: int
    content: ImagePatches | Tensor
    digest: str

    @classmethod
    def of_patches(cls, count: int, patches: ImagePatches) -> "PromptImage":
        """Return an image that the program encodes to `count` rows."""
        digest = hashlib.sha256(f"{count} {patches.limit}".encode())
        for tensor in (patches.pixels, patches.positions):
            digest.update(tensor.contiguous().numpy().tobytes())
        return cls(count, patches, digest.hexdigest())

    @classmethod
    def of_rows(cls, rows: Tensor, width: int) -> "PromptImage":
        """Return an image of float rows [count, `width`]. Raises PromptError for another shape and
        for numbers that are not finite."""
        if rows.ndim != 2 or rows.shape[1] != width or not len(rows):
            raise PromptError(
                f"embeddings of an image are {list(rows.shape)}, not rows of {width} numbers"
            )
        if not rows.is_floating_point() or not bool(rows.isfinite().all()):
            raise PromptError("embeddings of an image are not all finite numbers")
        copy = rows.detach().to("cpu", torch.float32, copy=True).contiguous()
        return cls(len(copy), copy, hashlib.sha256(copy.numpy().tobytes()).hexdigest())


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image whose first row is at position `start` of a prompt."""

    image: PromptImage
    start: int

    @property
    def span(self) -> ImageSpan:
        """The image's positions."""
        return self.start, self.start + self.image.count

    def keys(self) -> list[int]:
        """Return for each row a number that is no token's and no other image's."""
        first = int(self.image.digest[:32], 16) << 32
        return [-1 - first - row for row in range(self.image.count)]


@dataclass(frozen=True, eq=False, slots=True)
class TokenizedPrompt:
    """The token ids of a prompt, with one image token for each row of its images."""

    tokens: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()
    spans: tuple[ImageSpan, ...] = field(init=False)
    """The positions of the images, in their order."""
    keys: Sequence[int] = field(init=False)
    """Two prompts begin alike as far as their keys are equal: token ids, and numbers that identify
    the rows of images."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", tuple(placed.span for placed in self.images))
        object.__setattr__(self, "keys", self._keys())

    def _keys(self) -> Sequence[int]:
        if not self.images:
            return self.tokens
        keys = list(self.tokens)
        for placed in self.images:
            start, end = placed.span
            keys[start:end] = placed.keys()
        return keys


def place_images(
    ids: Sequence[int], images: Sequence[PromptImage], inputs: ImageInputs, max_rows: int
) -> TokenizedPrompt:
    """Replace each image token by the tokens of an image: the token that begins an image, one image
    token for each of its rows, and the token that ends it.

    Raises PromptError unless there are as many image tokens as images, and for an image of more
    rows than the `max_rows` of a chunk.
    """
    check_image_tokens(ids, len(images), inputs)
    tokens, placed, remaining = list[int](), list[PlacedImage](), iter(images)
    for token in ids:
        if token != inputs.image_token:
            tokens.append(token)
            continue
        image = next(remaining)
        if image.count > max_rows:
            raise PromptError(
                f"an image of {image.count} rows: a chunk of a prompt has {max_rows} at most"
            )
        placed.append(PlacedImage(image, len(tokens) + 1))
        tokens += [inputs.begin_token, *[token] * image.count, inputs.end_token]
    return TokenizedPrompt(tuple(tokens), tuple(placed))


def check_image_count(images: int) -> None:
    """Raise PromptError for more images than a prompt takes, before any of them is read."""
    if images > MAX_IMAGES:
        raise PromptError(f"{images} images: a prompt takes {MAX_IMAGES} at most")


def check_image_tokens(ids: Sequence[int], images: int, inputs: ImageInputs) -> None:
    """Raise PromptError for another number of image tokens, and for tokens of video and audio."""
    if (count := list(ids).count(inputs.image_token)) != images:
        raise PromptError(f"the prompt has {count} image tokens, and {images} images are given")
    others = set(inputs.never) - {inputs.image_token}
    if wrong := others.intersection(ids):
        raise PromptError(f"token {min(wrong)} stands for video or audio, which is not read")
