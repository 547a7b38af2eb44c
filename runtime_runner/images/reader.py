"""Reads images from files, bytes, `data:` URLs, PIL images and rows of other encoders."""

import base64
import binascii
import io
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from eagle_aot.artifact import ImageInputs
from eagle_aot.common.command import check_installed
from eagle_aot.common.errors import (
    ArtifactError,
    PromptError,
    SettingError,
    UnsupportedError,
    reason,
)
from eagle_aot.common.image_settings import ImageSettings, processor_file, read_settings
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.images.prompt_image import ImagePatches, PromptImage

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_BYTES = 32 << 20  # of a file
MAX_PIXELS = 64_000_000
"""192 MB once unpacked. A file of a few kB may claim to have more."""
MULTI_PICTURE = "MPO"
"""Pillow's name for a JPEG that contains several images, as cameras write them."""
DATA = "data:"
OTHER_SCHEMES = ("http:", "https:", "file:", "ftp:")
PRINTED = 40  # characters of a URL
Source = str | Path | bytes | Tensor | PromptImage | Any
"""A file, its bytes, a `data:` URL, a PIL image, or rows [count, H] that another encoder made."""


class ImageReader:
    """Reads images for one artifact, whose manifest has `images`."""

    def __init__(self, directory: Path, images: ImageInputs) -> None:
        self._directory, self.images = directory, images

    def read(self, source: Source, image_tokens: int | None = None) -> PromptImage:
        """Return an image of at most `image_tokens` rows of a prompt, the artifact's own number if
        None.

        Raises PromptError for an image that cannot be read, and SettingError for a number that is
        not one of the artifact's.
        """
        if isinstance(source, PromptImage):
            return source
        if isinstance(source, Tensor):
            return PromptImage.of_rows(source, self.images.hidden_size)
        limit = self.images.rows[0] if image_tokens is None else image_tokens
        if limit not in self.images.rows:
            choices = " or ".join(map(str, self.images.rows))
            raise SettingError(f"--image-tokens {limit}: this artifact's images have {choices}")
        image, name = self._open(source)
        return self._process(image, name, limit)

    def _open(self, source: Source) -> tuple[Any, str]:
        """Return a PIL image, and its name for error lines."""
        if isinstance(source, bytes):
            return decode_image(source, "image"), "image"
        if isinstance(source, str) and is_url(source):
            return decode_image(decode_url(source), "image_url"), "image_url"
        if isinstance(source, str | Path):
            return decode_image(read_file(Path(source)), str(source)), str(source)
        check_installed("PIL", extra="images")
        from PIL import Image as pil

        if not isinstance(source, pil.Image):
            raise PromptError(f"a {type(source).__name__} is no image")
        return to_rgb(source, "image"), "image"

    def _process(self, image: Any, name: str, limit: int) -> PromptImage:
        try:
            inputs = self._processor(image, max_soft_tokens=limit, return_tensors="pt")
        except ValueError as error:
            width, height = image.size
            problem = one_line(str(error))
            raise PromptError(f"{name}: {width} x {height} pixels: {problem}") from error
        pixels, positions = inputs["pixel_values"].float(), inputs["image_position_ids"].long()
        count = int(inputs["num_soft_tokens_per_image"][0])
        return PromptImage.of_patches(count, ImagePatches(pixels, positions, limit))

    @cached_property
    def _processor(self) -> Any:
        """transformers' image processor, which uses Pillow."""
        check_installed("PIL", extra="images")
        try:
            from transformers.models.gemma4 import image_processing_pil_gemma4 as library
        except ImportError as error:
            raise UnsupportedError(f"this transformers reads no images ({error})") from error
        return library.Gemma4ImageProcessorPil(**self._settings().options())

    def _settings(self) -> ImageSettings:
        """Raises ArtifactError for the settings of another vision tower."""
        path, images = processor_file(self._directory), self.images
        settings = read_settings(path)
        if path is None:
            return ImageSettings(
                patch_size=images.patch_size,
                pooling_kernel_size=images.pooling,
                max_soft_tokens=images.rows[0],
            )
        patches = settings.patch_size, settings.pooling_kernel_size
        if patches != (images.patch_size, images.pooling):
            raise ArtifactError(f"{path}: its patches are not the program's: export again")
        return settings


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
    """Return whether a text is a URL and not a file's name."""
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


def decode_image(content: bytes, name: str) -> "Image":
    """Return the image in a file's bytes, as `to_rgb` does. Raises PromptError for one that is
    damaged, too large, animated, or in another format than `FORMATS`."""
    check_installed("PIL", extra="images")
    from PIL import Image, UnidentifiedImageError

    if len(content) > MAX_BYTES:
        raise PromptError(f"{name}: longer than {MAX_BYTES >> 20} MiB, the limit of an image")
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise PromptError(f"{name}: not an image in {', '.join(FORMATS)}") from error
    except Exception as error:  # a different type for every kind of damage
        raise _damaged(name, error) from error
    return to_rgb(image, name)


def to_rgb(image: "Image", name: str) -> "Image":
    """Return an image in RGB, rotated as its EXIF data says. Raises PromptError as `decode_image`
    does."""
    from PIL import ImageOps

    width, height = image.size
    if width * height > MAX_PIXELS:
        raise PromptError(
            f"{name}: {width} x {height} pixels, {MAX_PIXELS // 10**6} million at most"
        )
    if getattr(image, "is_animated", False) and image.format != MULTI_PICTURE:
        raise PromptError(f"{name}: an animation: give one image of it")
    try:
        image.load()
        return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # a different type for every kind of damage
        raise _damaged(name, error) from error


def _damaged(name: str, error: Exception) -> PromptError:
    why = str(error) or type(error).__name__
    return PromptError(f"{name}: an image that cannot be read ({why})")
