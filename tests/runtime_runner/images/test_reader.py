"""Images from files that are not trusted: their pixels, or one line."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from eagle_aot.common.errors import ArtifactError, PromptError
from eagle_aot.runtime_runner.images.prompt_image import ImagePatches
from eagle_aot.runtime_runner.images.reader import ImageReader, Source, decode_image
from support.images import INPUTS, drawn, stored

ROTATED = 6
"""EXIF's number for a camera that was held sideways."""


@pytest.fixture
def reader(tmp_path: Path) -> ImageReader:
    return ImageReader(tmp_path, INPUTS)


def rotated() -> bytes:
    image = drawn(40, 80)
    exif = image.getexif()
    exif[0x112] = ROTATED
    return stored(image, "JPEG", exif=exif)


def block(kind: bytes, content: bytes) -> bytes:
    """A block of a PNG file."""
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def png(width: int, height: int, *more: bytes) -> bytes:
    """A PNG file of any size with almost no content."""
    size = block(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = block(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + size + b"".join(more) + pixels + block(b"IEND", b"")


FRAMES = [drawn(20, 20, seed) for seed in range(3)]
BROKEN: dict[str, tuple[Source, str]] = {
    "empty": (b"", "not an image in PNG, JPEG, WEBP"),
    "cut in its header": (stored(FRAMES[0])[:30], "not an image"),
    "cut": (stored(FRAMES[0])[:600], "cannot be read"),
    "cut JPEG": (stored(FRAMES[0], "JPEG")[:400], "cannot be read"),
    "bomb": (png(20_000, 20_000), "400000000 pixels|64 million at most"),
    "large": (png(9_000, 9_000), "9000 x 9000 pixels, 64 million at most"),
    "bomb of text": (
        png(6, 6, block(b"zTXt", b"a\0\0" + zlib.compress(bytes(50_000_000)))),
        "cannot be read",
    ),
    "animated PNG": (stored(FRAMES[0], save_all=True, append_images=FRAMES[1:]), "an animation"),
    "animated WebP": (
        stored(FRAMES[0], "WEBP", save_all=True, append_images=FRAMES[1:]),
        "an animation",
    ),
    "GIF": (stored(FRAMES[0], "GIF"), "not an image in"),
    "no file": (Path("nowhere.png"), "nowhere.png: cannot be read"),
    "directory": (Path(), "cannot be read"),
    "web address": ("https://example.org/a.png", "nothing is fetched"),
    "file address": ("file:///etc/passwd", "nothing is fetched"),
    "no base64": ("data:image/png;base64,!!", "not base64"),
    "plain": ("data:image/png,abc", "must be base64"),
    "number": (3, "a int is no image"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_image_is_refused_in_one_line(name: str, reader: ImageReader) -> None:
    source, words = BROKEN[name]
    with pytest.raises(PromptError, match=words) as refused:
        reader.read(source)
    assert "\n" not in str(refused.value)


def test_a_file_is_not_read_beyond_the_limit(
    reader: ImageReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle_aot.runtime_runner.images.reader.MAX_BYTES", 1 << 20)
    long = tmp_path / "long.png"
    long.write_bytes(png(6, 6) + bytes(1 << 20))
    for source in (long, long.read_bytes()):
        with pytest.raises(PromptError, match="longer than 1 MiB"):
            reader.read(source)


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1), (3, 60), (100, 80)])
@pytest.mark.parametrize("rows", [70, 140])
def test_patches_of_any_size_are_those_of_transformers(
    size: tuple[int, int], rows: int, reader: ImageReader
) -> None:
    image = drawn(*size)
    read = reader.read(stored(image), rows)
    processor = Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=rows)
    expected = processor(image, return_tensors="pt")
    assert isinstance(read.content, ImagePatches) and read.content.limit == rows
    assert torch.equal(read.content.pixels, expected["pixel_values"])
    assert torch.equal(read.content.positions, expected["image_position_ids"])
    assert read.count == expected["num_soft_tokens_per_image"][0] <= rows
    assert read.digest != reader.read(stored(image), 210 - rows).digest


@pytest.mark.parametrize("mode", ["P", "L", "1", "LA", "RGBA", "I;16"])
def test_pixels_of_every_kind_become_rgb(mode: str) -> None:
    deep = np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40
    image = Image.fromarray(deep) if mode == "I;16" else drawn(40, 40).convert(mode)
    decoded = decode_image(stored(image), "image")
    assert decoded.mode == "RGB" and decoded.tobytes() == image.convert("RGB").tobytes()
    printed = stored(drawn(40, 40).convert("CMYK"), "JPEG")
    assert decode_image(printed, "image").mode == "RGB"


def test_a_photo_is_rotated_as_its_exif_data_says(reader: ImageReader) -> None:
    image = decode_image(rotated(), "image")
    assert image.size == (40, 80)
    upright = ImageOps.exif_transpose(image)
    assert reader.read(image).digest == reader.read(upright).digest == reader.read(rotated()).digest


def test_the_first_image_of_several_in_a_photo_is_read() -> None:
    several = stored(FRAMES[0], "MPO", save_all=True, append_images=FRAMES[1:])
    assert decode_image(several, "image").size == (20, 20)


def test_a_processor_of_another_tower_is_refused(reader: ImageReader, tmp_path: Path) -> None:
    settings = tmp_path / "processor_config.json"
    for text, words in (
        ('{"image_processor": {"patch_size": 16}}', "its patches are not the program's"),
        ('{"image_processor": {"patch_size": "x"}}', "cannot be read"),
        ('{"image_processor": {"image_processor_type": "Siglip"}}', "is not read here"),
        ("[", "cannot be read"),
    ):
        settings.write_text(text)
        with pytest.raises(ArtifactError, match=words):
            ImageReader(tmp_path, INPUTS).read(FRAMES[0])
