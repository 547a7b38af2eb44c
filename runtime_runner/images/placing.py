"""Where the pictures of a prompt stand among its tokens."""

from collections.abc import Sequence

from eagle_aot.artifact import ImageInputs
from eagle_aot.common.errors import PromptError
from eagle_aot.runtime_runner.images.picture import Picture, Placed, PlacedPrompt

MOST_PICTURES = 64
"""Of a prompt."""


def place(
    ids: Sequence[int], pictures: Sequence[Picture], images: ImageInputs, longest: int
) -> PlacedPrompt:
    """Ids with a picture's whole run in place of each image token: the token that begins one, one
    image token for each of its rows, and the token that ends it.

    Raises PromptError unless there are as many image tokens as pictures, and as many rows of each
    as a chunk of `longest` rows holds.
    """
    check_ids(ids, len(pictures), images)
    tokens, placed, coming = list[int](), list[Placed](), iter(pictures)
    for token in ids:
        if token != images.image_token:
            tokens.append(token)
            continue
        picture = next(coming)
        if picture.count > longest:
            raise PromptError(
                f"a picture of {picture.count} rows: {longest} at most lie in one chunk of a prompt"
            )
        placed.append(Placed(picture, len(tokens) + 1))
        tokens += [images.begin_token, *[token] * picture.count, images.end_token]
    return PlacedPrompt(tuple(tokens), tuple(placed))


def check_count(pictures: int) -> None:
    """Raise PromptError for more than a prompt takes, before any is read."""
    if pictures > MOST_PICTURES:
        raise PromptError(f"{pictures} pictures: a prompt takes {MOST_PICTURES} at most")


def check_ids(ids: Sequence[int], pictures: int, images: ImageInputs) -> None:
    """Raise PromptError for ids that stand for what is not there."""
    if (found := list(ids).count(images.image_token)) != pictures:
        raise PromptError(
            f"the prompt has {found} places for pictures, and {pictures} pictures are given"
        )
    others = set(images.never) - {images.image_token}
    if wrong := others.intersection(ids):
        raise PromptError(f"token {min(wrong)} stands for video or audio, which is not read")
