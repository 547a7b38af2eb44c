"""Pictures from files that anybody may have written: their pixels, or one line."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from eagle_aot.common.errors import ArtifactError, PromptError
from eagle_aot.runtime_runner.images import files
from eagle_aot.runtime_runner.images.picture import Patches
from eagle_aot.runtime_runner.images.reader import PictureReader, Source
from support.pictures import INPUTS, drawn, stored

ROTATED = 6
"""As EXIF says that a camera was held."""


@pytest.fixture
def reader(tmp_path: Path) -> PictureReader:
    return PictureReader(tmp_path, INPUTS)


def rotated() -> bytes:
    image = drawn(40, 80)
    exif = image.getexif()
    exif[0x112] = ROTATED
    return stored(image, "JPEG", exif=exif)


def block(kind: bytes, content: bytes) -> bytes:
    """Of a PNG file."""
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def png(width: int, height: int, *more: bytes) -> bytes:
    """With next to nothing in it, whatever its size."""
    size = block(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = block(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + size + b"".join(more) + pixels + block(b"IEND", b"")


FRAMES = [drawn(20, 20, seed) for seed in range(3)]
BROKEN: dict[str, tuple[Source, str]] = {
    "empty": (b"", "not a picture in PNG, JPEG, WEBP"),
    "cut in its header": (stored(FRAMES[0])[:30], "not a picture"),
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
    "GIF": (stored(FRAMES[0], "GIF"), "not a picture in"),
    "no file": (Path("nowhere.png"), "nowhere.png: cannot be read"),
    "directory": (Path(), "cannot be read"),
    "address": ("https://example.org/a.png", "nothing is fetched"),
    "file address": ("file:///etc/passwd", "nothing is fetched"),
    "no base64": ("data:image/png;base64,!!", "not base64"),
    "plain": ("data:image/png,abc", "must be base64"),
    "number": (3, "a int is no picture"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_refused_in_one_line(name: str, reader: PictureReader) -> None:
    source, words = BROKEN[name]
    with pytest.raises(PromptError, match=words) as refused:
        reader.read(source)
    assert "\n" not in str(refused.value)


def test_a_file_is_not_read_beyond_the_limit(
    reader: PictureReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    long = tmp_path / "long.png"
    long.write_bytes(png(6, 6) + bytes(1 << 20))
    for source in (long, long.read_bytes()):
        with pytest.raises(PromptError, match="longer than 1 MiB"):
            reader.read(source)


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1), (3, 60), (100, 80)])
@pytest.mark.parametrize("rows", [70, 140])
def test_any_size_becomes_what_transformers_makes_of_it(
    size: tuple[int, int], rows: int, reader: PictureReader
) -> None:
    image = drawn(*size)
    picture = reader.read(stored(image), rows)
    processor = Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=rows)
    wanted = processor(image, return_tensors="pt")
    assert isinstance(picture.content, Patches) and picture.content.limit == rows
    assert torch.equal(picture.content.pixels, wanted["pixel_values"])
    assert torch.equal(picture.content.places, wanted["image_position_ids"])
    assert picture.count == wanted["num_soft_tokens_per_image"][0] <= rows
    assert picture.digest != reader.read(stored(image), 210 - rows).digest


@pytest.mark.parametrize("mode", ["P", "L", "1", "LA", "RGBA", "I;16"])
def test_pixels_of_every_kind_become_rgb(mode: str) -> None:
    deep = np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40
    image = Image.fromarray(deep) if mode == "I;16" else drawn(40, 40).convert(mode)
    found = files.decoded(stored(image), "image")
    assert found.mode == "RGB" and found.tobytes() == image.convert("RGB").tobytes()
    printed = stored(drawn(40, 40).convert("CMYK"), "JPEG")
    assert files.decoded(printed, "image").mode == "RGB"


def test_a_photo_is_turned_as_its_camera_was_held(reader: PictureReader) -> None:
    found = files.decoded(rotated(), "image")
    assert found.size == (40, 80)
    upright = ImageOps.exif_transpose(found)
    assert reader.read(found).digest == reader.read(upright).digest == reader.read(rotated()).digest


def test_more_pictures_behind_the_first_of_a_photo_are_passed_over() -> None:
    several = stored(FRAMES[0], "MPO", save_all=True, append_images=FRAMES[1:])
    assert files.decoded(several, "image").size == (20, 20)


def test_a_processor_of_another_tower_is_refused(reader: PictureReader, tmp_path: Path) -> None:
    settings = tmp_path / "processor_config.json"
    for text, words in (
        ('{"image_processor": {"patch_size": 16}}', "its patches are not the program's"),
        ('{"image_processor": {"patch_size": "x"}}', "cannot be read"),
        ('{"image_processor": {"image_processor_type": "Siglip"}}', "is not read here"),
        ("[", "cannot be read"),
    ):
        settings.write_text(text)
        with pytest.raises(ArtifactError, match=words):
            PictureReader(tmp_path, INPUTS).read(FRAMES[0])
