"""`eagle-bench --part images`: time to encode an image, and to run prompts with images.

    eagle-export --target-model gemma4-31b --load-format dummy --backend cuda \\
        --inputs text,image --image-tokens 280,1120 --max-seq-len 8192 --no-self-test
    eagle-bench gemma4-31b-cuda --part images

Each image is compared with a floor: the tower's operations at --tflops, or its weights read at
--terabytes, whichever takes longer. Each prompt is compared with one of as many tokens without
images. Pixels and tokens are random; times are medians.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import torch

from eagle_aot.artifact import ImageInputs, Manifest
from eagle_aot.common.errors import SettingError
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.bench.spec import BenchSpec, check_range, table_of
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.input_embeds import ImageEmbedder
from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.images.prompt_image import (
    ImagePatches,
    PromptImage,
    TokenizedPrompt,
    place_images,
)

WARM_UPS = 2


class ImagesSpec(BenchSpec, kw_only=True, frozen=True):
    """The prompts, and the device's peaks."""

    images: Annotated[
        tuple[int, ...], Option("Images in a prompt.", metavar="N,...", commas=True)
    ] = (1, 4)
    text: Annotated[int, Option("Tokens of text in a prompt.", least=1)] = 40
    repeats: Annotated[int, Option("Samples per figure, whose median counts.", least=1)] = 9
    tflops: Annotated[float, Option("Peak TFLOP/s of the device.")] = 989.0
    terabytes: Annotated[float, Option("Terabytes that the device reads in a second.")] = 3.03


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeTime:
    """Seconds to encode an image into up to `rows` rows, and the least that it could take."""

    rows: int
    seconds: float
    floor: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePromptTime:
    """Seconds to run a prompt of `tokens` with `images` images of `rows` rows each.

    `encoding` is the images' part of it, `as_text` the time of as many tokens without images.
    """

    images: int
    rows: int
    tokens: int
    seconds: float
    encoding: float
    as_text: float


@spec_command(ImagesSpec)
def main(spec: ImagesSpec) -> None:
    """Time images in prompts of ARTIFACT, which takes text and images."""
    manifest = Manifest.read(spec.artifact)
    if manifest.images is None:
        raise SettingError(f"{spec.artifact}: takes text alone: export with --inputs text,image")
    runner, inputs = spec.load(), manifest.images
    longest = max(spec.images) * (max(inputs.rows) + 2) + spec.text
    check_range("--images and --text", [longest], runner.constants.max_seq_len - 1)
    encoded, prompts = list[EncodeTime](), list[ImagePromptTime]()
    encoder = ImageEmbedder(runner.executor, inputs)
    for rows in inputs.rows:
        image = random_image(inputs, rows)
        seconds = median_seconds(runner, partial(encoder.rows, image), spec.repeats)
        encoded.append(EncodeTime(rows=rows, seconds=seconds, floor=floor_of(manifest, rows, spec)))
        prompts += [
            time_prompt(runner, inputs, image, count, seconds, spec) for count in spec.images
        ]
    encoding_table = table_of("rows of an image", "encoding: ms", "floor: ms", "times the floor")
    for line in encoded:
        floor = "" if line.floor is None else f"{1e3 * line.floor:.2f}"
        times = "" if line.floor is None else f"{line.seconds / line.floor:.1f}"
        encoding_table.add_row(str(line.rows), f"{1e3 * line.seconds:.2f}", floor, times)
    prompt_table = table_of("images", "rows of each", "tokens", "prompt: ms", "encoding",
                            "as text: ms")  # fmt: skip
    for prompt in prompts:
        counts = str(prompt.images), str(prompt.rows), f"{prompt.tokens:,}"
        seconds_ = prompt.seconds, prompt.encoding, prompt.as_text
        prompt_table.add_row(*counts, *(f"{1e3 * part:.1f}" for part in seconds_))
    results = {
        "encoded": [asdict(line) for line in encoded],
        "prompts": [asdict(prompt) for prompt in prompts],
    }
    spec.show(f"images in prompts of {spec.name}", results, encoding_table, prompt_table)


def random_image(inputs: ImageInputs, rows: int) -> PromptImage:
    """Return a square image of random pixels with as many rows as fit into `rows`."""
    rng = torch.Generator().manual_seed(0)
    side = int(rows**0.5)
    width, patches = side * inputs.pooling, rows * inputs.pooling**2
    pixels = torch.rand(1, patches, 3 * inputs.patch_size**2, generator=rng)
    coordinates = torch.full((1, patches, 2), -1)
    index = torch.arange(width**2)
    coordinates[0, : width**2] = torch.stack((index % width, index // width), dim=-1)
    pixels[0, width**2 :] = 0
    return PromptImage.of_patches(side**2, ImagePatches(pixels, coordinates, rows))


def floor_of(manifest: Manifest, rows: int, spec: ImagesSpec) -> float | None:
    """Return the seconds of the tower's operations or of reading its weights, whichever is more.

    None where the export recorded neither.
    """
    tower: dict[str, Any] | None = manifest.decisions.get("tower")
    if tower is None:
        return None
    itemsize = 2 if manifest.backend == "cuda" else 4
    computing = tower["operations"][str(rows)] / (spec.tflops * 1e12)
    return max(computing, itemsize * tower["parameters"] / (spec.terabytes * 1e12))


def time_prompt(
    runner: Runner,
    inputs: ImageInputs,
    image: PromptImage,
    count: int,
    encode_seconds: float,
    spec: ImagesSpec,
) -> ImagePromptTime:
    """Time a prompt with `count` images, with text before, between and after them."""
    ids = list[int]()
    for part in range(count):
        ids += [*random_ids(spec.text // (count + 1), part), inputs.image_token]
    ids += random_ids(spec.text - len(ids) + count, count)
    placed = place_images(ids, [image] * count, inputs, runner.constants.max_prefill_chunk)
    plain = TokenizedPrompt(tuple(random_ids(len(placed.tokens), 99)))
    return ImagePromptTime(
        images=count,
        rows=image.count,
        tokens=len(placed.tokens),
        seconds=median_seconds(runner, partial(run_prompt, runner, placed), spec.repeats),
        encoding=count * encode_seconds,
        as_text=median_seconds(runner, partial(run_prompt, runner, plain), spec.repeats),
    )


def random_ids(count: int, seed: int) -> list[int]:
    """Return some of the first thousand ids, but not the id of an image."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(3, 1000, (count,), generator=rng).tolist()


def run_prompt(runner: Runner, prompt: TokenizedPrompt) -> None:
    """Run all chunks in the first cache."""
    runner.engine.sequence_pool.forget()
    sequence = runner.batch.sequences[:1]
    prefill = Prefill(runner.target, runner.drafter, prompt.tokens, sequence, images=prompt.images)
    while prefill.left:
        prefill.run_chunk()


def median_seconds(runner: Runner, call: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a call until the device has finished, after warm-ups."""
    samples = []
    for _ in range(WARM_UPS + repeats):
        started = time.perf_counter()
        with torch.no_grad():
            call()
        if runner.executor.device.type == "cuda":
            torch.cuda.synchronize()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples[WARM_UPS:])
