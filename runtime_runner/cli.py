"""`eagle-run`: generate text from an artifact."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from rich.console import Console

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.prompts import Prompt, is_ids, read_prompts
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.runtime_runner.frontend.parameters import PROMPT, GenerationParams
from eagle_aot.runtime_runner.frontend.report import (
    Failures,
    statistics,
    summary,
    total,
    totals,
    write,
)
from eagle_aot.runtime_runner.sampling.parameters import GENERATION
from eagle_aot.runtime_runner.spec import ENGINE, OUTPUT, GenerationSpec

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.frontend.generation import Result
    from eagle_aot.runtime_runner.runner import Runner

NOT_IN_CHAT = ("prompt", "prompt_file", "prompts_jsonl", "batch_size", "plot", "raw_prompt", "n",
               "logprobs", "prompt_logprobs", "logprobs_of", "echo")  # fmt: skip


class RunSpec(GenerationSpec, kw_only=True, frozen=True):
    """The options of `eagle-run`."""

    prompt: Annotated[str | None, Option("The prompt.", PROMPT, "TEXT")] = None
    prompt_file: Annotated[Path | None, Option(
        "Read the prompt from a file, or standard input.", PROMPT, "FILE|-")] = None  # fmt: skip
    prompts_jsonl: Annotated[Path | None, Option(
        'Read prompts, one a line: {"prompt": "..."}, {"messages": [{"role": "user", "content": '
        '"..."}]} or {"token_ids": [...]}.', PROMPT, "FILE|-")] = None  # fmt: skip
    images: Annotated[tuple[Path, ...], Option(
        "An image in the prompt, or in a chat's first turn; may be repeated.", PROMPT, "FILE",
        "--image")] = ()  # fmt: skip
    image_tokens: Annotated[int | None, Option(
        "Most tokens of an image. Default: the artifact's.", PROMPT, "N")] = None  # fmt: skip
    chat: Annotated[bool, Option(
        "Chat: each line of input is a turn. --max-new-tokens is 1024 by default.",
        PROMPT)] = False  # fmt: skip
    recommended_sampling: Annotated[bool, Option(
        "Use the parameters in the model's generation_config.json, unless others are given.",
        GENERATION)] = False  # fmt: skip
    batch_size: Annotated[int | None, Option(
        "Answer B prompts of --prompts-jsonl in parallel.", ENGINE, "B")] = None  # fmt: skip
    warm_up: Annotated[bool, Option("Record all rounds before the first request.", ENGINE)] = False
    reuse: Annotated[bool | None, Option(
        "Use the prefix cache. Default: in a chat and with --n.", ENGINE)] = None  # fmt: skip
    as_json: Annotated[bool, Option(
        "Print one JSON object for each prompt, and a summary.", OUTPUT,
        flag="--json")] = False  # fmt: skip
    plot: Annotated[Path | None, Option(
        "Plot the acceptance of drafts.", OUTPUT, "FILE.png")] = None  # fmt: skip
    quiet: Annotated[bool, Option("Print nothing but the text.", OUTPUT)] = False

    def refuse(self, names: tuple[str, ...], reason: str) -> None:
        """Raise UsageError for the first of these options that was given."""
        values = {name: getattr(self, name, None) for name in names} | self.generation
        for name in names:
            if values[name] is not None:
                raise click.UsageError(f"{reason}: leave out {self._flag(name)}")

    def read_prompts(self) -> list[Prompt]:
        """Read the prompts. Raises UsageError for options that contradict each other."""
        if self.plot is not None:
            from eagle_aot.lab.plots import check_plot

            check_plot(self.plot)
        for name in ("logprobs", "prompt_logprobs"):
            if self.generation.get(name) is not None and not self.as_json:
                raise click.UsageError(f"{self._flag(name)} goes with --json")
        if (self.images or self.image_tokens) and self.prompts_jsonl is not None:
            raise click.UsageError("--image goes with --prompt, --prompt-file and --chat: the "
                                   "lines of --prompts-jsonl name images of their own")  # fmt: skip
        sources = self.prompt, self.prompt_file, self.prompts_jsonl
        if sum(source is not None for source in sources) != 1:
            raise click.UsageError(
                "give one of --prompt, --prompt-file, --prompts-jsonl and --chat"
            )
        if self.batch_size is not None and self.prompts_jsonl is None:
            raise click.UsageError("--batch-size goes with --prompts-jsonl")
        return read_prompts(*sources)

    def _flag(self, name: str) -> str:
        """Return a field as the user wrote it, a flag or a key of --params."""
        return name if name in self.params else f"--{name.replace('_', '-')}"

    def open(self) -> tuple["Runner", dict[str, Any]]:
        """Open the artifact. Returns the runner and the fields of `GenerationParams`."""
        runner = self.load(reuse=self.reuse is not False)
        recommended = runner.recommended_sampling if self.recommended_sampling else {}
        options = recommended | {"reuse": bool(self.reuse)} | self.generation
        if self.warm_up:
            params = GenerationParams(**options)
            done = runner.warm_up(
                self.batch_size or 1,
                params.chain_len,
                params.speculate,
                tree=params.tree,
                sampling=params,
            )
            if not self.quiet:
                click.echo(str(done), err=True)
        return runner, options


@spec_command(RunSpec)
def main(spec: RunSpec) -> None:
    """Generate from ARTIFACT, speculating with its own drafter or with ngram.

    ARTIFACT is a directory, or a repository on the Hugging Face Hub, ORG/NAME[@REVISION].

    \b
        eagle-run gemma4-tiny-xnnpack --prompt "What is 3 times 4?"
        eagle-run gemma4-tiny-xnnpack --chat --temperature 0.8 --seed 7
        eagle-run ORG/NAME --prompts-jsonl prompts.jsonl --json --tree auto
    """
    if not spec.generation.get("speculate", True):
        spec.refuse(("chain_len", "tree", "plot"), "--no-speculation drafts nothing")
    if spec.chat:
        chat(spec)
        return
    prompts = spec.read_prompts()
    if spec.batch_size is not None:
        generate_batch(spec, prompts, spec.batch_size)
    else:
        generate(spec, prompts)


def chat(spec: RunSpec) -> None:
    """Answer every turn of a chat."""
    spec.refuse(NOT_IN_CHAT, "--chat reads what to answer")
    from eagle_aot.runtime_runner.frontend.terminal import Chat  # imports torch

    runner, options = spec.open()
    del options["reuse"]  # a conversation always reuses its rows
    Chat(runner, spec, options).run()


def generate(spec: RunSpec, prompts: list[Prompt]) -> None:
    """Answer one prompt after the other, then report what all of them cost."""
    runner, options = spec.open()
    params = GenerationParams(**options)
    results: list[Result] = []
    failures = Failures(as_json=spec.as_json)
    for number, prompt in enumerate(prompts, start=1):
        try:
            results += [answer(runner, prompt, each, spec) for each in params.answers()]
        except PromptError as error:
            if len(prompts) == 1:
                raise
            failures.add(number, str(error))
    if spec.prompts_jsonl is not None and results:
        if spec.as_json:
            click.echo(json.dumps(summary(results)))
        elif not spec.quiet:
            Console(stderr=True).print("\nIn all", totals(results), sep="\n")
    if spec.plot is not None and results:
        plot(results, spec.name, spec.plot)
    failures.raise_any(len(prompts))


def answer(runner: "Runner", prompt: Prompt, params: GenerationParams, spec: RunSpec) -> "Result":
    """Generate from one prompt and print it: as JSON, as text while it grows, or as ids."""
    from eagle_aot.runtime_runner.frontend.generation import Callbacks  # imports torch

    streams = not spec.as_json and not is_ids(prompt)
    tokenized = runner.read(prompt, params, spec.images, spec.image_tokens)
    result = runner.answer(tokenized, params, Callbacks(on_text=write if streams else None))
    if spec.as_json:
        click.echo(json.dumps(result.to_json()))
    else:
        click.echo("" if streams else result.ids)
        if not spec.quiet:
            Console(stderr=True).print(statistics(result))
    return result


def generate_batch(spec: RunSpec, prompts: list[Prompt], batch_size: int) -> None:
    """Answer several prompts in parallel, in the order of the file."""
    from eagle_aot.runtime_runner.frontend.batch import PromptBatch

    runner, options = spec.open()
    batch = PromptBatch(runner, spec)
    batch.run(prompts, batch_size, options)
    if spec.plot is not None and batch.results:
        plot(batch.results, spec.name, spec.plot)


def plot(results: Sequence["Result"], artifact: str, path: Path) -> None:
    """Plot the acceptance of all drafts. Raises SettingError where nothing was drafted."""
    from eagle_aot.lab.plots import plot_acceptance

    stats = total(results)
    if not stats.drafted:
        raise SettingError(f"--plot {path}: nothing was drafted")
    requests = "1 request" if len(results) == 1 else f"{len(results)} requests"
    shape = f"K = {stats.chain_len}" if stats.tree is None else f"tree {stats.tree}"
    title = f"{artifact}, {shape}, {requests}, {stats.rounds} rounds"
    plot_acceptance(stats, title, path)
