"""`eagle-batch`: a file of prompts, answered by many engines."""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.progress import track

from eagle_aot.common.command import check_installed, eagle_command
from eagle_aot.common.errors import EagleError, SettingError
from eagle_aot.common.prompts import Prompt, read_prompts
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.sampling.options import choice_of, choice_options

FAILED = b'{"error": '
STARTS = b'{"prompt_tokens": ', FAILED
"""How lines of answers begin."""


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("prompts_jsonl", type=click.Path(path_type=Path))
@click.argument("answers_jsonl", type=click.Path(path_type=Path))
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Engines, each with a GPU of its own where there are any.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--system", metavar="TEXT", help="What the model is told before all else.")
@click.option("--raw-prompt", is_flag=True, help="Do not wrap prompts in the chat template.")
@click.option("--stop-id", type=int, multiple=True, metavar="ID", help="One more id to stop at.")
@click.option("--stop", multiple=True, metavar="TEXT",
              help="End before this text; may be given more than once.")  # fmt: skip
@choice_options
@click.option("--quiet", is_flag=True)
def main(
    artifact: Path,
    prompts_jsonl: Path,
    answers_jsonl: Path,
    replicas: int,
    quiet: bool,
    **given: Any,
) -> None:
    """Answer PROMPTS_JSONL, as eagle-run reads it, into ANSWERS_JSONL, a line for each prompt in
    their order, as eagle-run --json writes it. The same command again goes on where one ended.
    """
    check_installed("ray", extra="ray")
    prompts = read_prompts(None, None, prompts_jsonl)
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    options = options_of(given)
    asked = GenerationParams(**options)
    with appending(answers_jsonl) as file:
        done = whole_lines(answers_jsonl)
        check_same(answers_jsonl, asked)
        if done > len(prompts):
            raise SettingError(
                f"{answers_jsonl}: has {done} answers, {prompts_jsonl} {len(prompts)} prompts: "
                "name the file that they are of"
            )
        lines = answered(artifact.resolve(), prompts[done:], replicas, options)
        left = len(prompts) - done
        for line in track(lines, "answers", total=left, console=console, disable=hidden):
            file.write(line.encode() + b"\n")
            file.flush()
    if not quiet:
        click.echo(f"{answers_jsonl}: {left} answers, behind {done} that were there", err=True)
    raise_failures(answers_jsonl)


def options_of(given: dict[str, Any]) -> dict[str, Any]:
    """Those of `Runner.generate` that stand on the command line."""
    same = "max_new_tokens", "system", "raw_prompt", "ignore_eos", "echo"
    stops = {"stop_ids": given["stop_id"], "stop_texts": given["stop"]}
    return {name: given[name] for name in same} | stops | choice_of(given)


@contextmanager
def appending(path: Path) -> Iterator[BinaryIO]:
    """A file to write behind what is there. Raises SettingError while another process does."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingError(f"{path}: another eagle-batch writes it: name another") from error
        yield file


def whole_lines(path: Path) -> int:
    """How many answers there are; half of one at the end, of a run that was killed, is cut off.

    Raises SettingError for a file of anything else, which is left as it is.
    """
    content = path.read_bytes()
    *lines, half = content.split(b"\n")
    begun = any(start.startswith(half[: len(start)]) for start in STARTS)
    if not begun or not all(line.startswith(STARTS) for line in lines):
        raise SettingError(f"{path}: holds more than answers of eagle-batch: name another file")
    if half:
        os.truncate(path, len(content) - len(half))
    return len(lines)


def check_same(path: Path, asked: GenerationParams) -> None:
    """Raise SettingError where the first answer of a file was asked for otherwise; each has a seed
    of its own where none is asked for."""
    with path.open("rb") as lines:
        answer = next((line for line in lines if not line.startswith(FAILED)), b"{}")
    try:
        told = json.loads(answer).get("parameters")
    except ValueError as error:
        raise SettingError(f"{path}: is damaged ({error}): name another file") from error
    wanted = json.loads(json.dumps(asked.to_json()))
    if told is not None and asked.seed is None:
        told.pop("seed", None)
    if told not in (None, wanted):
        raise SettingError(
            f"{path}: has answers that were asked for with other options: give those, or name "
            "another file"
        )


def raise_failures(path: Path) -> None:
    """Raise EagleError where a line tells why there is no answer."""
    lines = path.read_bytes().splitlines()
    failed = [i for i, line in enumerate(lines, start=1) if line.startswith(FAILED)]
    if failed:
        first = lines[failed[0] - 1].decode(errors="replace")
        raise EagleError(f"{path}: {len(failed)} of {len(lines)} failed: line {failed[0]}: {first}")


def answered(
    artifact: Path, prompts: Sequence[Prompt], replicas: int, options: dict[str, Any]
) -> Iterator[str]:
    """A line for each, in their order. An engine that dies is begun anew and its block answered
    again, as often as need be: that is Ray Data's default, and there is no argument for it."""
    if not prompts:
        return
    import ray
    import ray.data

    from eagle_aot.artifact import Manifest
    from eagle_aot.artifact.verified import forget
    from eagle_aot.runtime_runner.serve.on_ray.machine import gpus_of
    from eagle_aot.runtime_runner.serve.on_ray.predictor import Predictor

    manifest, key = Manifest.read(artifact), secrets.token_hex()
    ray.init(include_dashboard=False, logging_level="warning", ignore_reinit_error=True)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    rows = ray.data.from_items([{"prompt": json.dumps(prompt)} for prompt in prompts])
    answers = rows.map_batches(
        Predictor,
        fn_constructor_args=(artifact, key, options),
        batch_size=4 * manifest.max_batch_size,
        compute=ray.data.ActorPoolStrategy(size=replicas),
        num_gpus=gpus_of(manifest),
    )
    for row in answers.iter_rows():
        yield row["answer"]
    forget(key)


if __name__ == "__main__":
    main()
