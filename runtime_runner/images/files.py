"""Images from files and `data:` URLs to pixels: bounded, and refused in one line."""

import base64
import binascii
import io
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_aot.common.command import check_installed
from eagle_aot.common.errors import PromptError, reason

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_BYTES = 32 << 20
"""Of a file."""
MAX_PIXELS = 64_000_000
"""Once unpacked, 192 MB; a file of a few kB may claim to have more."""
MULTI_PICTURE = "MPO"
"""What Pillow calls a JPEG with more images after the first, as cameras write them."""
DATA = "data:"
OTHER_SCHEMES = ("http:", "https:", "file:", "ftp:")
PRINTED = 40  # characters of a URL


def read_file(path: Path) -> bytes:
    """Return the content of a file. Raises PromptError for one that cannot be read, or is too
    long."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PromptError(f"{path}: cannot be read ({reason(error)})") from error
    if len(content) > MAX_BYTES:
        raise PromptError(f"{path}: longer than {MAX_BYTES >> 20} MiB, the limit of an image")
    return content


def is_url(text: str) -> bool:
    """Whether a text is a URL and not a file's name."""
    return text[:PRINTED].lower().startswith((DATA, *OTHER_SCHEMES))


def decode_url(url: str) -> bytes:
    """Return the bytes in a `data:` URL. Raises PromptError for any other URL, since nothing is
    fetched, and for a damaged one."""
    head, comma, body = url.partition(",")
    if not head.lower().startswith(DATA) or not comma:
        raise PromptError(
            f"image_url {url[:PRINTED]!r}: nothing is fetched: send data:image/png;base64,..."
        )
    if not head.lower().endswith(";base64"):
        raise PromptError(f"image_url {head[:PRINTED]!r}: must be base64")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PromptError(f"image_url: not base64 ({error})") from error


def decode_image(content: bytes, where: str) -> "Image":
    """Return the image in a file's bytes, as `to_rgb` does. Raises PromptError for one that is
    damaged, too large, animated, or in another format than `FORMATS`."""
    check_installed("PIL", extra="images")
    from PIL import Image, UnidentifiedImageError

    if len(content) > MAX_BYTES:
        raise PromptError(f"{where}: longer than {MAX_BYTES >> 20} MiB, the limit of an image")
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise PromptError(f"{where}: not an image in {', '.join(FORMATS)}") from error
    except Exception as error:  # a different type for every kind of damage
        raise _damaged(where, error) from error
    return to_rgb(image, where)


def to_rgb(image: "Image", where: str) -> "Image":
    """Return an image in RGB, rotated as its EXIF data says. Raises PromptError as `decode_image`
    does."""
    from PIL import ImageOps

    width, height = image.size
    if width * height > MAX_PIXELS:
        raise PromptError(
            f"{where}: {width} x {height} pixels, {MAX_PIXELS // 10**6} million at most"
        )
    if getattr(image, "is_animated", False) and image.format != MULTI_PICTURE:
        raise PromptError(f"{where}: an animation: give one image of it")
    try:
        image.load()
        return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # a different type for every kind of damage
        raise _damaged(where, error) from error


def _damaged(where: str, error: Exception) -> PromptError:
    why = str(error) or type(error).__name__
    return PromptError(f"{where}: an image that cannot be read ({why})")
