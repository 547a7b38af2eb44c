"""`eagle-batch`: a file of prompts, answered by many engines."""

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from eagle_aot.common.command import check_installed, eagle_command
from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import Prompt, read_prompts


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("prompts_jsonl", type=click.Path(path_type=Path))
@click.argument("answers_jsonl", type=click.Path(path_type=Path))
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Engines, each with a GPU of its own where there are any.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--system", metavar="TEXT", help="What the model is told before all else.")
@click.option("--raw-prompt", is_flag=True, help="Do not wrap prompts in the chat template.")
@click.option("--quiet", is_flag=True)
def main(
    artifact: Path,
    prompts_jsonl: Path,
    answers_jsonl: Path,
    replicas: int,
    quiet: bool,
    **options: Any,
) -> None:
    """Answer PROMPTS_JSONL, as eagle-run reads it, into ANSWERS_JSONL, a line for each prompt in
    their order, as eagle-run --json writes it. The same command again goes on where one ended.
    """
    check_installed("ray", extra="ray")
    prompts = read_prompts(None, None, prompts_jsonl)
    done = whole_lines(answers_jsonl)
    if done > len(prompts):
        raise SettingError(f"{answers_jsonl}: has {done} answers, {prompts_jsonl} {len(prompts)}")
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    lines = answered(artifact.resolve(), prompts[done:], replicas, options)
    left = len(prompts) - done
    with answers_jsonl.open("ab") as file:
        for line in track(lines, "answers", total=left, console=console, disable=hidden):
            file.write(line.encode() + b"\n")
            file.flush()
    if not quiet:
        click.echo(f"{answers_jsonl}: {left} answers, behind {done} that were there", err=True)


def whole_lines(path: Path) -> int:
    """How many there are; half a line at the end, of a run that was killed, is cut off."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    return content.count(b"\n")


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
