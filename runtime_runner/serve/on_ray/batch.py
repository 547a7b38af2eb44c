"""`eagle-batch`: answers a file of prompts with several engines."""

import fcntl
import functools
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import click
import msgspec
from rich.console import Console
from rich.progress import track

from eagle_aot.artifact import Manifest
from eagle_aot.common.command import check_installed
from eagle_aot.common.errors import EagleError, SettingError
from eagle_aot.common.prompts import Prompt, read_prompts
from eagle_aot.common.spec import Option, OptionsOf, spec_command
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.serve.on_ray import configure_ray
from eagle_aot.runtime_runner.spec import ENGINE, OUTPUT, GenerationSpec

FAILED = b'{"error": '
STARTS = b'{"prompt_tokens": ', FAILED
"""The beginnings of lines in a file of answers."""


class BatchSpec(GenerationSpec, kw_only=True, frozen=True):
    """The options of `eagle-batch`."""

    prompts_jsonl: Path
    answers_jsonl: Path
    flags: Annotated[dict[str, Any], OptionsOf(GenerationParams, without=("n",))] = msgspec.field(
        default_factory=dict
    )
    replicas: Annotated[int, Option(
        "Engines, each with a GPU of its own where there are any.", ENGINE, "N",
        least=1)] = 1  # fmt: skip
    quiet: Annotated[bool, Option("Print nothing but errors.", OUTPUT)] = False


@spec_command(BatchSpec)
def main(spec: BatchSpec) -> None:
    """Answer PROMPTS_JSONL, as eagle-run reads it, into ANSWERS_JSONL: a line for each prompt, in
    their order, as eagle-run --json writes it. Repeat the command to continue where it stopped.

    \b
        eagle-batch gemma4-tiny-xnnpack prompts.jsonl answers.jsonl
    """
    check_installed("ray", extra="ray")
    prompts, answers = read_prompts(None, None, spec.prompts_jsonl), spec.answers_jsonl
    console = Console(stderr=True)
    hidden = spec.quiet or not console.is_terminal
    parameters = GenerationParams(**spec.generation)
    if parameters.n > 1:
        raise SettingError(f"n {parameters.n}: a prompt has one line: use eagle-run for more")
    with appending(answers) as file:
        done = whole_lines(answers)
        check_same(answers, parameters)
        if done > len(prompts):
            raise SettingError(
                f"{answers}: has {done} answers, {spec.prompts_jsonl} {len(prompts)} prompts: "
                "name the file that they belong to"
            )
        lines = answer_lines(spec, prompts[done:])
        remaining = len(prompts) - done
        for line in track(lines, "answers", total=remaining, console=console, disable=hidden):
            file.write(line.encode() + b"\n")
            file.flush()
    if not spec.quiet:
        click.echo(f"{answers}: {remaining} answers, after {done} that it had", err=True)
    raise_failures(answers)


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
    """Return the number of answers in a file. Truncates an answer that a killed run did not finish
    writing. Raises SettingError for a file that contains anything else, and does not change it."""
    content = path.read_bytes()
    *lines, partial = content.split(b"\n")
    is_partial = any(start.startswith(partial[: len(start)]) for start in STARTS)
    if not is_partial or not all(line.startswith(STARTS) for line in lines):
        raise SettingError(f"{path}: holds more than answers of eagle-batch: name another file")
    if partial:
        os.truncate(path, len(content) - len(partial))
    return len(lines)


def check_same(path: Path, parameters: GenerationParams) -> None:
    """Raise SettingError if the first answer in a file has other parameters. Its seed is ignored
    unless one is requested: each answer has drawn a seed."""
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
    """Raise EagleError if a line has an error in place of an answer."""
    lines = path.read_bytes().splitlines()
    failed = [i for i, line in enumerate(lines, start=1) if line.startswith(FAILED)]
    if failed:
        first = lines[failed[0] - 1].decode(errors="replace")
        raise EagleError(f"{path}: {len(failed)} of {len(lines)} failed: line {failed[0]}: {first}")


class Predictor:
    """An engine that Ray Data gives blocks of prompts."""

    def __init__(
        self, artifact: Path, key: str, load: dict[str, Any], options: dict[str, Any]
    ) -> None:
        """`key` is that of `verify_once`. `load` are options of `load_artifact`, `options` those
        of `Runner.generate_many`."""
        from eagle_aot.artifact.verified import verify_once
        from eagle_aot.runtime_runner.load import load_artifact

        verify = functools.partial(verify_once, key=key)
        self._runner, self._options = load_artifact(artifact, verify=verify, **load), options

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        """Answer the `prompt` of each row, which is JSON, with a line of JSON: the answer, or why
        there is none."""
        prompts = [json.loads(prompt) for prompt in rows["prompt"]]
        answers = self._runner.generate_many(prompts, keep_going=True, **self._options)
        return {"answer": [json.dumps(answer.to_json()) for answer in answers]}


def gpus_of(manifest: Manifest) -> float:
    """Return the GPUs of an engine as Ray counts them: one for an artifact for GPUs, if there are
    any."""
    import torch

    return float(manifest.backend == "cuda" and torch.cuda.is_available())


def answer_lines(spec: BatchSpec, prompts: Sequence[Prompt]) -> Iterator[str]:
    """Yield a line for each prompt, in order. When an engine dies, Ray Data starts another one and
    repeats its block of prompts, without a limit on attempts."""
    if not prompts:
        return
    configure_ray()
    import ray
    import ray.data

    from eagle_aot.artifact.verified import forget

    artifact, key = spec.artifact.resolve(), secrets.token_hex()
    manifest = Manifest.read(artifact)
    load = {"executor": spec.executor, "drafter": spec.drafter}
    ray.init(include_dashboard=False, logging_level="warning", ignore_reinit_error=True)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    rows = ray.data.from_items([{"prompt": json.dumps(prompt)} for prompt in prompts])
    answers = rows.map_batches(
        Predictor,
        fn_constructor_args=(artifact, key, load, spec.generation),
        batch_size=4 * manifest.max_batch_size,
        compute=ray.data.ActorPoolStrategy(size=spec.replicas),
        num_gpus=gpus_of(manifest),
    )
    for row in answers.iter_rows():
        yield row["answer"]
    forget(key)


if __name__ == "__main__":
    main()
