"""Pictures that others made, from a file's bytes to pixels: bounded, and refused in words."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_aot.common.command import check_installed
from eagle_aot.common.errors import PromptError, reason

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP")
MOST_BYTES = 32 << 20
"""Of a file."""
MOST_PIXELS = 64_000_000
"""Once unpacked, which a few kB may say that they are: 192 MB."""
SEVERAL_PARTS = "MPO"
"""What Pillow calls a JPEG with more pictures behind the first, as cameras write them."""


def read_file(path: Path) -> bytes:
    """All of a file. Raises PromptError for one that cannot be read, or is too long."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise PromptError(f"{path}: cannot be read ({reason(error)})") from error
    if len(content) > MOST_BYTES:
        raise PromptError(f"{path}: longer than {MOST_BYTES >> 20} MiB, the most of a picture")
    return content


def decoded(content: bytes, where: str) -> "Image":
    """The picture in a file's bytes, as `upright` says. Raises PromptError for one that is broken,
    too large, animated, or of another format than `FORMATS`."""
    check_installed("PIL", extra="images")
    from PIL import Image, UnidentifiedImageError

    if len(content) > MOST_BYTES:
        raise PromptError(f"{where}: longer than {MOST_BYTES >> 20} MiB, the most of a picture")
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise PromptError(f"{where}: not a picture in {', '.join(FORMATS)}") from error
    except Exception as error:  # another one for every kind of damage
        raise _broken(where, error) from error
    return upright(image, where)


def upright(image: "Image", where: str) -> "Image":
    """RGB, turned as its EXIF data say. Raises PromptError as `decoded` does."""
    from PIL import ImageOps

    width, height = image.size
    if width * height > MOST_PIXELS:
        raise PromptError(
            f"{where}: {width} x {height} pixels, {MOST_PIXELS // 10**6} million at most"
        )
    if getattr(image, "is_animated", False) and image.format != SEVERAL_PARTS:
        raise PromptError(f"{where}: an animation: give one picture of it")
    try:
        image.load()
        return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # another one for every kind of damage
        raise _broken(where, error) from error


def _broken(where: str, error: Exception) -> PromptError:
    why = str(error) or type(error).__name__
    return PromptError(f"{where}: a picture that cannot be read ({why})")
