"""What pictures in a prompt cost: to make rows of one, and until the first token.

\b
    eagle-export --target-model gemma4-31b --load-format dummy --backend cuda \\
        --inputs text,image --image-tokens 280,1120 --max-seq-len 8192 --no-self-test
    python scripts/bench_images.py gemma4-31b-cuda

Beside each picture stands the floor: the operations of the tower at `--tflops`, or its weights read
at `--terabytes`, whichever takes longer. Beside each prompt stands one of as many tokens without
pictures. Pixels and tokens are random. Of several repetitions the one in the middle is told.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from eagle_aot.artifact import ImageInputs, Manifest
from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError
from eagle_aot.lab.bench.settings import check_range
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.options import commit_option, json_option, numbers
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.decode.input_embeds import GivenRows
from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.images.picture import Patches, Picture, PlacedPrompt
from eagle_aot.runtime_runner.images.placing import place


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """Seconds to make up to `rows` rows of a picture, and the least that it could take."""

    rows: int
    seconds: float
    floor: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """Seconds to run a prompt of `tokens` with so many pictures of `rows` rows; of them those that
    make the rows; and all that a prompt of as many tokens without pictures takes."""

    pictures: int
    rows: int
    tokens: int
    seconds: float
    encoding: float
    as_text: float


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--pictures", callback=numbers, default="1,4", show_default=True, metavar="N,...",
              help="In a prompt.")  # fmt: skip
@click.option("--text", "text", type=click.IntRange(min=1), default=40, show_default=True,
              help="Tokens of the prompt beside its pictures.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(min=1), default=9, show_default=True)
@click.option("--tflops", type=float, default=989.0, show_default=True,
              help="That the device computes at most: an H100's, by its data sheet.")  # fmt: skip
@click.option("--terabytes", type=float, default=3.03, show_default=True,
              help="That it reads in a second.")  # fmt: skip
@commit_option
@json_option
def main(
    artifact: Path,
    pictures: list[int],
    text: int,
    repeats: int,
    tflops: float,
    terabytes: float,
    commit: str | None,
    as_json: bool,
) -> None:
    """Time pictures in prompts of ARTIFACT, whose prompts may have some."""
    manifest = Manifest.read(artifact)
    if manifest.images is None:
        raise SettingError(f"{artifact}: reads text alone: export with --inputs text,image")
    runner, images = load_artifact(artifact), manifest.images
    largest = max(pictures) * (max(images.rows) + 2) + text
    check_range("--pictures and --text", [largest], runner.constants.max_seq_len - 1)
    encoded, read = list[Encoded](), list[Read]()
    given = GivenRows(runner.executor, images)
    for rows in images.rows:
        one = made_up(images, rows)
        seconds = middle(runner, partial(given.rows, one), repeats)
        floor = least(manifest, rows, tflops * 1e12, terabytes * 1e12)
        encoded.append(Encoded(rows=rows, seconds=seconds, floor=floor))
        read += [prompt(runner, images, one, n, text, seconds, repeats) for n in pictures]
    head = header(f"pictures in prompts of {artifact.name}", commit)
    if as_json:
        found = {"encoded": [asdict(one) for one in encoded], "read": [asdict(r) for r in read]}
        click.echo(json.dumps({**asdict(head), **found}))
    else:
        shown = encoded_table(encoded), read_table(read)
        Console(highlight=False, width=120).print(*title_lines(head), *shown, sep="\n")


def made_up(images: ImageInputs, rows: int) -> Picture:
    """A square picture of as many rows as fit into so many, of random pixels."""
    rng = torch.Generator().manual_seed(0)
    side = int(rows**0.5)
    width, patches = side * images.pooling, rows * images.pooling**2
    pixels = torch.rand(1, patches, 3 * images.patch_size**2, generator=rng)
    places = torch.full((1, patches, 2), -1)
    at = torch.arange(width**2)
    places[0, : width**2] = torch.stack((at % width, at // width), dim=-1)
    pixels[0, width**2 :] = 0
    return Picture.of_patches(side**2, Patches(pixels, places, rows))


def least(manifest: Manifest, rows: int, operations: float, read: float) -> float | None:
    """Seconds for the tower's operations, or to read its weights, whichever are more; None where
    the export did not tell of it."""
    tower: dict[str, Any] | None = manifest.decisions.get("tower")
    if tower is None:
        return None
    size = 2 if manifest.backend == "cuda" else 4
    return max(tower["operations"][str(rows)] / operations, size * tower["parameters"] / read)


def prompt(
    runner: Runner,
    images: ImageInputs,
    picture: Picture,
    count: int,
    text: int,
    encoding: float,
    repeats: int,
) -> Read:
    """One with `count` pictures, each behind as much of the text."""
    ids = list[int]()
    for part in range(count):
        ids += [*random_ids(text // (count + 1), part), images.image_token]
    ids += random_ids(text - len(ids) + count, count)
    longest = runner.constants.max_prefill_chunk
    placed = place(ids, [picture] * count, images, longest)
    plain = PlacedPrompt(tuple(random_ids(len(placed.tokens), 99)))
    return Read(
        pictures=count,
        rows=picture.count,
        tokens=len(placed.tokens),
        seconds=middle(runner, lambda: run(runner, placed), repeats),
        encoding=count * encoding,
        as_text=middle(runner, lambda: run(runner, plain), repeats),
    )


def random_ids(count: int, seed: int) -> list[int]:
    """Some of the first thousand, of which none stands for a picture."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(3, 1000, (count,), generator=rng).tolist()


def run(runner: Runner, prompt: PlacedPrompt) -> None:
    """All chunks, in the first cache."""
    runner.engine.sequences.forget()
    where = runner.running.sequences[:1]
    chunks = Prefill(runner.target, runner.drafter, prompt.tokens, where, pictures=prompt.pictures)
    while chunks.left:
        chunks.run_chunk()


def middle(runner: Runner, call: Callable[[], object], repeats: int) -> float:
    """Seconds of a call, the device's included: the median, behind two that do not count."""
    found = [seconds(runner, call) for _ in range(repeats + 2)]
    return statistics.median(found[2:])


def seconds(runner: Runner, call: Callable[[], object]) -> float:
    """Of one call."""
    started = time.perf_counter()
    with torch.no_grad():
        call()
    if runner.executor.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def encoded_table(lines: Sequence[Encoded]) -> Table:
    """Of one picture."""
    shown = Table("rows of a picture", "encoding: ms", "floor: ms", "times the floor")
    for one in lines:
        floor = "" if one.floor is None else f"{1e3 * one.floor:.2f}"
        times = "" if one.floor is None else f"{one.seconds / one.floor:.1f}"
        shown.add_row(str(one.rows), f"{1e3 * one.seconds:.2f}", floor, times)
    return shown


def read_table(lines: Sequence[Read]) -> Table:
    """Of whole prompts."""
    shown = Table("pictures", "rows of each", "tokens", "prompt: ms", "encoding", "as text: ms")
    for one in lines:
        counts = str(one.pictures), str(one.rows), f"{one.tokens:,}"
        times = (f"{1e3 * part:.1f}" for part in (one.seconds, one.encoding, one.as_text))
        shown.add_row(*counts, *times)
    return shown


if __name__ == "__main__":
    main()
