"""The settings of a checkpoint's image processor.

transformers' class computes with them. It sees no other content of the file, which is not trusted.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from eagle_aot.artifact import PROCESSOR_FILES
from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.strict_json import read_object
from eagle_aot.common.structs import convert

SECTION = "image_processor"
"""The key of the settings in `processor_config.json`; `preprocessor_config.json` has only them."""
KINDS = ("Gemma4ImageProcessor", "Gemma4ImageProcessorFast", "Gemma4ImageProcessorPil")

Three = Annotated[list[float], Meta(min_length=3, max_length=3)]


class ImageSettings(Struct, frozen=True, kw_only=True):
    """The settings of transformers' Gemma 4 image processor, with its names, meanings and defaults;
    other keys of a file have no effect on it."""

    do_convert_rgb: bool = True
    do_resize: bool = True
    resample: Annotated[int, Meta(ge=0, le=5)] = 3
    do_rescale: bool = True
    rescale_factor: Annotated[float, Meta(gt=0, le=1)] = 1 / 255
    do_normalize: bool = False
    image_mean: Three = msgspec.field(default_factory=lambda: [0.0] * 3)
    image_std: Three = msgspec.field(default_factory=lambda: [1.0] * 3)
    patch_size: Annotated[int, Meta(ge=1, le=256)] = 16
    pooling_kernel_size: Annotated[int, Meta(ge=1, le=16)] = 3
    max_soft_tokens: Annotated[int, Meta(ge=1, le=1120)] = 280
    image_processor_type: str = KINDS[0]

    def options(self) -> dict[str, Any]:
        """Return the arguments of transformers' class."""
        values = structs.asdict(self)
        del values["image_processor_type"]
        return values


def processor_file(directory: Path) -> Path | None:
    """Return the file with the settings in a checkpoint's or an artifact's directory, None where
    there is none."""
    paths = (directory / name for name in PROCESSOR_FILES)
    return next((path for path in paths if path.is_file()), None)


def read_settings(path: Path | None) -> ImageSettings:
    """Return the settings of a file, transformers' defaults for None. Raises ArtifactError for a
    file that is damaged or has settings of another processor."""
    if path is None:
        return ImageSettings()
    try:
        content = read_object(path)
        section = content.get(SECTION, {} if path.name == PROCESSOR_FILES[0] else content)
        settings = convert(section, ImageSettings)
    except (OSError, ValueError) as error:  # msgspec's are ValueErrors
        raise ArtifactError(f"{path}: cannot be read ({error})") from error
    if settings.image_processor_type not in KINDS:
        raise ArtifactError(f"{path}: {settings.image_processor_type!r} is not read here")
    if not all(settings.image_std):
        raise ArtifactError(f"{path}: image_std has a zero")
    return settings
