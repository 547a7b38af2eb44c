"""`eagle-batch`: answers a file of prompts with several engines."""

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
"""The beginnings of lines in a file of answers."""


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("prompts_jsonl", type=click.Path(path_type=Path))
@click.argument("answers_jsonl", type=click.Path(path_type=Path))
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Engines, each with a GPU of its own where there are any.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--system", metavar="TEXT", help="The system's text, before each prompt.")
@click.option("--raw-prompt", is_flag=True, help="Do not wrap prompts in the chat template.")
@click.option("--stop-id", type=int, multiple=True, metavar="ID",
              help="Stop at this token id too; may be repeated.")  # fmt: skip
@click.option("--stop", multiple=True, metavar="TEXT",
              help="End before this text; may be repeated.")  # fmt: skip
@choice_options
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def main(
    artifact: Path,
    prompts_jsonl: Path,
    answers_jsonl: Path,
    replicas: int,
    quiet: bool,
    **options: Any,
) -> None:
    """Answer PROMPTS_JSONL, as eagle-run reads it, into ANSWERS_JSONL: a line for each prompt, in
    their order, as eagle-run --json writes it. Repeat the command to continue where it stopped.
    """
    check_installed("ray", extra="ray")
    prompts = read_prompts(None, None, prompts_jsonl)
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    values = generation_options(options)
    parameters = GenerationParams(**values)
    with appending(answers_jsonl) as file:
        done = whole_lines(answers_jsonl)
        check_same(answers_jsonl, parameters)
        if done > len(prompts):
            raise SettingError(
                f"{answers_jsonl}: has {done} answers, {prompts_jsonl} {len(prompts)} prompts: "
                "name the file that they belong to"
            )
        lines = answer_lines(artifact.resolve(), prompts[done:], replicas, values)
        remaining = len(prompts) - done
        for line in track(lines, "answers", total=remaining, console=console, disable=hidden):
            file.write(line.encode() + b"\n")
            file.flush()
    if not quiet:
        click.echo(f"{answers_jsonl}: {remaining} answers, after {done} that it had", err=True)
    raise_failures(answers_jsonl)


def generation_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `Runner.generate` that the command line has."""
    same_names = "max_new_tokens", "system", "raw_prompt", "ignore_eos", "echo"
    stops = {"stop_ids": options["stop_id"], "stop_texts": options["stop"]}
    return {name: options[name] for name in same_names} | stops | choice_of(options)


@contextmanager
def appending(path: Path) -> Iterator[BinaryIO]:
    """Open a file to append to. Raises SettingError while another process does."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingError(f"{path}: another eagle-batch writes it: name another") from error
        yield file


def whole_lines(path: Path) -> int:
    """Return the number of answers in a file, and cuts off the last one where a run was killed
    while it wrote it.

    Raises SettingError for a file of anything else, which is left as it is.
    """
    content = path.read_bytes()
    *lines, partial = content.split(b"\n")
    is_partial = any(start.startswith(partial[: len(start)]) for start in STARTS)
    if not is_partial or not all(line.startswith(STARTS) for line in lines):
        raise SettingError(f"{path}: holds more than answers of eagle-batch: name another file")
    if partial:
        os.truncate(path, len(content) - len(partial))
    return len(lines)


def check_same(path: Path, parameters: GenerationParams) -> None:
    """Raise SettingError where the first answer of a file has other parameters. Its seed may be any
    where none is requested: each answer has drawn its own."""
    with path.open("rb") as lines:
        answer = next((line for line in lines if not line.startswith(FAILED)), b"{}")
    try:
        stored = json.loads(answer).get("parameters")
    except ValueError as error:
        raise SettingError(f"{path}: is damaged ({error}): name another file") from error
    requested = json.loads(json.dumps(parameters.to_json()))
    if stored is not None and parameters.seed is None:
        stored.pop("seed", None)
    if stored not in (None, requested):
        raise SettingError(
            f"{path}: its answers were requested with other options: give those, or name another "
            "file"
        )


def raise_failures(path: Path) -> None:
    """Raise EagleError where a line says why there is no answer."""
    lines = path.read_bytes().splitlines()
    failed = [i for i, line in enumerate(lines, start=1) if line.startswith(FAILED)]
    if failed:
        first = lines[failed[0] - 1].decode(errors="replace")
        raise EagleError(f"{path}: {len(failed)} of {len(lines)} failed: line {failed[0]}: {first}")


def answer_lines(
    artifact: Path, prompts: Sequence[Prompt], replicas: int, options: dict[str, Any]
) -> Iterator[str]:
    """Yield a line for each prompt, in their order. When an engine dies, a new one is started and
    its block of prompts answered again, as often as necessary: Ray Data's default, which has no
    argument."""
    if not prompts:
        return
    import ray
    import ray.data

    from eagle_aot.artifact import Manifest
    from eagle_aot.artifact.verified import forget
    from eagle_aot.runtime_runner.serve.on_ray.actors import Predictor, gpus_of

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
