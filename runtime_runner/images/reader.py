"""Reads images in all forms that users give them in."""

from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle_aot.artifact import ImageInputs
from eagle_aot.common.command import check_installed
from eagle_aot.common.errors import ArtifactError, PromptError, SettingError, UnsupportedError
from eagle_aot.common.image_settings import ImageSettings, processor_file, read_settings
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.images.files import (
    decode_image,
    decode_url,
    is_url,
    read_file,
    to_rgb,
)
from eagle_aot.runtime_runner.images.prompt_image import ImagePatches, PromptImage

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
        image, where = self._open(source)
        return self._process(image, where, limit)

    def _open(self, source: Source) -> tuple[Any, str]:
        """Return a PIL image, and its name for error lines."""
        if isinstance(source, bytes):
            return decode_image(source, "image"), "image"
        if isinstance(source, str) and is_url(source):
            return decode_image(decode_url(source), "image_url"), "image_url"
        if isinstance(source, str | Path):
            return decode_image(read_file(Path(source)), str(source)), str(source)
        check_installed("PIL", extra="images")
        from PIL.Image import Image

        if not isinstance(source, Image):
            raise PromptError(f"a {type(source).__name__} is no image")
        return to_rgb(source, "image"), "image"

    def _process(self, image: Any, where: str, limit: int) -> PromptImage:
        try:
            inputs = self._processor(image, max_soft_tokens=limit, return_tensors="pt")
        except ValueError as error:
            width, height = image.size
            reason = one_line(str(error))
            raise PromptError(f"{where}: {width} x {height} pixels: {reason}") from error
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
