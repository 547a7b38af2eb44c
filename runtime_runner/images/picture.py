"""A picture on its way into a prompt: what the program makes rows of, or rows that are given."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle_aot.common.errors import PromptError

Span = tuple[int, int]
"""Positions of a prompt that are a picture's: from the first up to behind the last."""


@dataclass(frozen=True, slots=True)
class Patches:
    """As transformers' processor gives them, for the method that makes `limit` rows at most:
    `pixels` float32 [1, P, N] and `places` int64 [1, P, 2]."""

    pixels: Tensor
    places: Tensor
    limit: int


@dataclass(frozen=True, eq=False, slots=True)
class Picture:
    """`count` rows of a prompt: what is made of `content`, or it, [count, H], where another encoder
    has made them. Equal `digest`s are of equal rows."""

    count: int
    content: Patches | Tensor
    digest: str

    @classmethod
    def of_patches(cls, count: int, patches: Patches) -> "Picture":
        """Of which the program makes `count` rows."""
        digest = hashlib.sha256(f"{count} {patches.limit}".encode())
        for tensor in (patches.pixels, patches.places):
            digest.update(tensor.contiguous().numpy().tobytes())
        return cls(count, patches, digest.hexdigest())

    @classmethod
    def of_rows(cls, rows: Tensor, width: int) -> "Picture":
        """Of rows that are made already. Raises PromptError unless they are finite numbers of
        [count, `width`]."""
        if rows.ndim != 2 or rows.shape[1] != width or not len(rows):
            raise PromptError(
                f"embeddings of a picture are {list(rows.shape)}, not rows of {width} numbers"
            )
        if not rows.is_floating_point() or not bool(rows.isfinite().all()):
            raise PromptError("embeddings of a picture are not all finite numbers")
        kept = rows.detach().to("cpu", torch.float32, copy=True).contiguous()
        return cls(len(kept), kept, hashlib.sha256(kept.numpy().tobytes()).hexdigest())


@dataclass(frozen=True, slots=True)
class Placed:
    """A picture whose first row stands at position `start` of a prompt."""

    picture: Picture
    start: int

    @property
    def span(self) -> Span:
        """Where it is."""
        return self.start, self.start + self.picture.count

    def keys(self) -> list[int]:
        """For each of its rows a number that is no token's, and no other picture's."""
        first = int(self.picture.digest[:32], 16) << 32
        return [-1 - first - row for row in range(self.picture.count)]


@dataclass(frozen=True, eq=False, slots=True)
class PlacedPrompt:
    """Token ids of a prompt, in which one id stands for each row of its pictures."""

    tokens: tuple[int, ...]
    pictures: tuple[Placed, ...] = ()
    spans: tuple[Span, ...] = field(init=False)
    """Of the pictures, in their order."""
    keys: Sequence[int] = field(init=False)
    """Two prompts begin alike as far as these are the same: the tokens, and what tells pictures
    apart in place of their ids."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", tuple(placed.span for placed in self.pictures))
        object.__setattr__(self, "keys", self._keys())

    def _keys(self) -> Sequence[int]:
        if not self.pictures:
            return self.tokens
        found = list(self.tokens)
        for placed in self.pictures:
            first, behind = placed.span
            found[first:behind] = placed.keys()
        return found
