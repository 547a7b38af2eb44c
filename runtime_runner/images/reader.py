"""From whatever a user calls a picture to what an artifact makes rows of."""

from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle_aot.artifact import ImageInputs
from eagle_aot.common.command import check_installed
from eagle_aot.common.errors import ArtifactError, PromptError, SettingError, UnsupportedError
from eagle_aot.common.image_settings import ImageSettings, processor_file, read_settings
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.images.files import decoded, read_file, upright
from eagle_aot.runtime_runner.images.picture import Patches, Picture
from eagle_aot.runtime_runner.images.urls import content_of, is_url

Source = str | Path | bytes | Tensor | Picture | Any
"""A file, its bytes, a `data:` URL, a PIL image, or rows [count, H] that another encoder made."""


class PictureReader:
    """Of one artifact, whose manifest has such `images`."""

    def __init__(self, directory: Path, images: ImageInputs) -> None:
        self._directory, self.images = directory, images

    def read(self, source: Source, rows: int | None = None) -> Picture:
        """A picture of at most `rows` rows of the prompt, the artifact's own number if None.

        Raises PromptError for what cannot be read, SettingError for another number than the
        artifact's.
        """
        if isinstance(source, Picture):
            return source
        if isinstance(source, Tensor):
            return Picture.of_rows(source, self.images.hidden_size)
        limit = self.images.rows[0] if rows is None else rows
        if limit not in self.images.rows:
            known = " or ".join(map(str, self.images.rows))
            raise SettingError(f"--image-tokens {limit}: this artifact's pictures have {known}")
        image, where = self._opened(source)
        return self._ready(image, where, limit)

    def _opened(self, source: Source) -> tuple[Any, str]:
        if isinstance(source, bytes):
            return decoded(source, "image"), "image"
        if isinstance(source, str) and is_url(source):
            return decoded(content_of(source), "image_url"), "image_url"
        if isinstance(source, str | Path):
            return decoded(read_file(Path(source)), str(source)), str(source)
        check_installed("PIL", extra="images")
        from PIL.Image import Image

        if not isinstance(source, Image):
            raise PromptError(f"a {type(source).__name__} is no picture")
        return upright(source, "image"), "image"

    def _ready(self, image: Any, where: str, limit: int) -> Picture:
        try:
            ready = self._processor(image, max_soft_tokens=limit, return_tensors="pt")
        except ValueError as error:
            width, height = image.size
            reason = one_line(str(error))
            raise PromptError(f"{where}: {width} x {height} pixels: {reason}") from error
        pixels, places = ready["pixel_values"].float(), ready["image_position_ids"].long()
        count = int(ready["num_soft_tokens_per_image"][0])
        return Picture.of_patches(count, Patches(pixels, places, limit))

    @cached_property
    def _processor(self) -> Any:
        """transformers' own, by Pillow."""
        check_installed("PIL", extra="images")
        try:
            from transformers.models.gemma4 import image_processing_pil_gemma4 as library
        except ImportError as error:
            raise UnsupportedError(f"this transformers reads no pictures ({error})") from error
        return library.Gemma4ImageProcessorPil(**self._settings().options())

    def _settings(self) -> ImageSettings:
        """Raises ArtifactError for those of another tower."""
        path = processor_file(self._directory)
        found, images = read_settings(path), self.images
        if path is None:
            return ImageSettings(
                patch_size=images.patch_size,
                pooling_kernel_size=images.pooling,
                max_soft_tokens=images.rows[0],
            )
        if (found.patch_size, found.pooling_kernel_size) != (images.patch_size, images.pooling):
            raise ArtifactError(f"{path}: its patches are not the program's: export again")
        return found
