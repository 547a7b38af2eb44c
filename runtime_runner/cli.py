"""`eagle-run`: generate text from an artifact."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from eagle_aot.common.command import eagle_command, given_options
from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.prompts import Prompt, is_ids, read_prompts
from eagle_aot.runtime_runner.decode.shape import AUTO_LENGTH, ChainLen
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.report import (
    Failures,
    statistics,
    summary,
    total,
    totals,
)
from eagle_aot.runtime_runner.options import drafter_option
from eagle_aot.runtime_runner.sampling.options import SAMPLING, choice_of, sampling_options
from eagle_aot.runtime_runner.sampling.parameters import LogprobsOf

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.frontend.result import Result
    from eagle_aot.runtime_runner.runner import Runner

BESIDE_CHAT = {
    "chat", "images", "image_tokens", "system", "max_new_tokens", "chain_len", "tree", "drafter",
    "no_speculation", "executor", "no_cuda_graph", "warm_up", "stop_id", "stop", "as_json", "quiet",
    "reuse", *SAMPLING, "logit_bias", "allow_id", "recommended_sampling", "ignore_eos",
}  # fmt: skip


def chain_length(
    context: click.Context, option: click.Parameter, value: str | None
) -> ChainLen | None:
    """What --chain-len says: the option's callback."""
    if value is None:
        return None
    try:
        return AUTO_LENGTH if value == AUTO_LENGTH else int(value)
    except ValueError as error:
        raise click.BadParameter(
            f"{value!r} is neither a whole number nor {AUTO_LENGTH}"
        ) from error


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--prompt", metavar="TEXT", help="The prompt.")
@click.option("--prompt-file", type=click.Path(path_type=Path), metavar="FILE|-",
              help="A file that is the prompt, or standard input.")  # fmt: skip
@click.option("--prompts-jsonl", type=click.Path(path_type=Path), metavar="FILE|-",
              help='One {"prompt": "..."}, {"messages": [{"role": "user", "content": "..."}]} or '
                   '{"token_ids": [...]} per line.')  # fmt: skip
@click.option("--image", "images", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
              help="An image in the prompt, or in a chat's first turn; may be given more than "
                   "once.")  # fmt: skip
@click.option("--image-tokens", type=int, metavar="N",
              help="Of an image in the prompt, at most; default: the artifact's.")  # fmt: skip
@click.option("--chat", is_flag=True, help="A conversation: every line of input is a turn.")
@click.option("--system", metavar="TEXT", help="What the model is told before all else.")
@click.option("--raw-prompt", is_flag=True, help="Do not wrap the prompt in the chat template.")
@click.option("--batch-size", type=int, metavar="B",
              help="Answer so many prompts of --prompts-jsonl side by side.")  # fmt: skip
@click.option("--prompt-share", type=float, metavar="S",
              help="Of the time, for prompts beside answers; default: 0.45.")  # fmt: skip
@click.option("--max-new-tokens", type=int, metavar="N",
              help="Of an answer, at most; default: 128, in a chat 1024.")  # fmt: skip
@click.option("--chain-len", callback=chain_length, metavar="K",
              help="Drafts per round, or auto; default: the artifact's.")  # fmt: skip
@click.option("--tree", metavar="DEPTH,TOPK,NODES|FILE|auto",
              help="Draft a tree, the likeliest so many nodes or a file's paths; auto: or a chain, "
                   "or nothing, whatever pays.")  # fmt: skip
@drafter_option
@click.option("--no-speculation", is_flag=True, help="Decode plainly, from the same artifact.")
@click.option("--executor", type=click.Choice(["auto", "aoti", "executorch"]), default="auto",
              show_default=True)  # fmt: skip
@click.option("--no-cuda-graph", is_flag=True, help="Launch every kernel of a round by itself.")
@click.option("--warm-up", is_flag=True,
              help="Record all rounds first, not each when it is needed.")  # fmt: skip
@click.option("--reuse/--no-reuse", default=None,
              help="Go on from what caches hold of a prompt, or run it whole; default: go on in a "
                   "chat and with --n.")  # fmt: skip
@click.option("--stop-id", type=int, multiple=True, metavar="ID", help="One more id to stop at.")
@click.option("--stop", multiple=True, metavar="TEXT",
              help="End before this text; may be given more than once.")  # fmt: skip
@sampling_options
@click.option("--json", "as_json", is_flag=True,
              help="Print one JSON object per prompt, and one of all.")  # fmt: skip
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="FILE.png",
              help="Draw what drafts were worth.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="Print the text alone.")
def main(chat: bool, **given: Any) -> None:
    """Generate from ARTIFACT, speculating with its own drafter or with ngram."""
    options = Options(**given)
    if chat:
        converse(options)
    else:
        generate(options)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What stands on the command line beside the mode."""

    artifact: Path
    prompt: str | None
    prompt_file: Path | None
    prompts_jsonl: Path | None
    images: tuple[Path, ...]
    image_tokens: int | None
    raw_prompt: bool
    system: str | None
    batch_size: int | None
    prompt_share: float | None
    max_new_tokens: int | None
    chain_len: ChainLen | None
    tree: str | None
    drafter: str | None
    no_speculation: bool
    executor: str
    no_cuda_graph: bool
    warm_up: bool
    reuse: bool | None
    stop_id: tuple[int, ...]
    stop: tuple[str, ...]
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: dict[int, float]
    allow_id: tuple[int, ...]
    seed: int | None
    recommended_sampling: bool
    logprobs: int | None
    logprobs_of: LogprobsOf
    prompt_logprobs: int | None
    n: int | None
    min_tokens: int | None
    ignore_eos: bool
    echo: bool
    as_json: bool
    picture: Path | None
    quiet: bool

    def load(self) -> "Runner":
        """The artifact, opened."""
        from eagle_aot.runtime_runner.load import load_artifact  # imports torch

        share: dict[str, Any] = (
            {} if self.prompt_share is None else {"prompt_share": self.prompt_share}
        )
        graphs = not self.no_cuda_graph
        runner = load_artifact(
            self.artifact,
            self.executor,
            cuda_graphs=graphs,
            drafter=self.drafter,
            reuse=self.reuse is not False,
            **share,
        )
        if self.warm_up:
            speculate = not self.no_speculation
            drafts = self.batch_size or 1, self.chain_len, speculate
            sampling = GenerationParams(**self.sampling(runner))
            done = runner.warm_up(*drafts, tree=self.tree, sampling=sampling)
            if not self.quiet:
                click.echo(str(done), err=True)
        return runner

    def sampling(self, runner: "Runner") -> dict[str, Any]:
        """What stands here of how tokens are chosen, or is recommended."""
        wanted = runner.recommended_sampling if self.recommended_sampling else {}
        return wanted | choice_of({field.name: getattr(self, field.name) for field in fields(self)})

    def asked(self, runner: "Runner") -> list[GenerationParams]:
        """Of each answer to a prompt."""
        return GenerationParams(**self.answering(runner)).answers()

    def answering(self, runner: "Runner") -> dict[str, Any]:
        """What `Runner.generate_many` is given beside prompts."""
        return {
            "system": self.system,
            "raw_prompt": self.raw_prompt,
            "n": 1 if self.n is None else self.n,
            "reuse": bool(self.reuse),
            **self.generation(runner),
        }

    def generation(self, runner: "Runner") -> dict[str, Any]:
        """What `Runner.generate` is given beside the prompt and its text."""
        length = {} if self.max_new_tokens is None else {"max_new_tokens": self.max_new_tokens}
        return length | {
            "chain_len": self.chain_len,
            "tree": self.tree,
            "speculate": not self.no_speculation,
            "stop_ids": self.stop_id,
            "stop_texts": self.stop,
            "ignore_eos": self.ignore_eos,
            "echo": self.echo,
            **self.sampling(runner),
        }


def converse(options: Options) -> None:
    """`--chat`: answer every turn."""
    if others := given_options(but=BESIDE_CHAT):
        raise click.UsageError(f"--chat reads what to answer: leave out {others[0]}")
    from eagle_aot.runtime_runner.frontend.terminal import Chat  # imports torch

    runner = options.load()
    chat = Chat(
        runner,
        options.system,
        images=options.images,
        image_tokens=options.image_tokens,
        quiet=options.quiet,
        as_json=options.as_json,
        **options.generation(runner),
    )
    chat.run()


def generate(options: Options) -> None:
    """Without a mode: answer every prompt, then say what all of them cost."""
    prompts = prompts_of(options)
    if options.batch_size is not None:
        generate_together(prompts, options.batch_size, options)
        return
    runner = options.load()
    results: list[Result] = []
    failures = Failures(as_json=options.as_json)
    for number, prompt in enumerate(prompts, start=1):
        try:
            results += [answer(runner, prompt, one, options) for one in options.asked(runner)]
        except PromptError as error:
            if len(prompts) == 1:
                raise
            failures.add(number, str(error))
    if options.prompts_jsonl is not None and results:
        tell_totals(results, options)
    if options.picture is not None and results:
        draw(results, options.artifact, options.picture)
    failures.raise_any(len(prompts))


def tell_totals(results: Sequence["Result"], options: Options) -> None:
    """What all answers cost, in the form that they have."""
    if options.as_json:
        click.echo(json.dumps(summary(results)))
    elif not options.quiet:
        Console(stderr=True).print("\nIn all", totals(results), sep="\n")


def generate_together(prompts: list[Prompt], batch_size: int, options: Options) -> None:
    """With --batch-size: answers in the order of the file, then what all of them cost."""
    from eagle_aot.runtime_runner.frontend.batch import PromptBatch, times_of

    if options.prompts_jsonl is None:
        raise click.UsageError("--batch-size goes with --prompts-jsonl")
    runner = options.load()
    batch = PromptBatch(runner, as_json=options.as_json, quiet=options.quiet)
    batch.run(prompts, batch_size, options.answering(runner))
    if options.picture is not None:
        title = f"{options.artifact.resolve().name}, {len(prompts)} requests"
        plots().plot_sequences(times_of(batch.results), title, options.picture)


def prompts_of(options: Options) -> list[Prompt]:
    """What is to be answered, once nothing else is wrong with the options."""
    if options.picture is not None:
        plots().check_plot(options.picture)
        if options.no_speculation and options.batch_size is None:
            raise click.UsageError(
                "--plot shows what drafts were worth: leave out --no-speculation"
            )
    sources = options.prompt, options.prompt_file, options.prompts_jsonl
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(options, name) is not None and not options.as_json:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --json")
    if (options.images or options.image_tokens) and options.prompts_jsonl is not None:
        raise click.UsageError("--image goes with --prompt, --prompt-file and --chat: the lines of "
                               "--prompts-jsonl name images of their own")  # fmt: skip
    if sum(source is not None for source in sources) != 1:
        raise click.UsageError("give one of --prompt, --prompt-file, --prompts-jsonl and --chat")
    return read_prompts(*sources)


def answer(runner: "Runner", prompt: Prompt, asked: GenerationParams, options: Options) -> "Result":
    """Generate from one prompt and print it: as JSON, as it comes, or as ids."""
    streams = not options.as_json and not is_ids(prompt)
    placed = runner.read(prompt, asked, options.images, options.image_tokens)
    result = runner.answer(placed, asked, on_text=write if streams else None)
    if options.as_json:
        click.echo(json.dumps(result.to_json()))
    else:
        click.echo("" if streams else result.ids)
        if not options.quiet:
            Console(stderr=True).print(statistics(result))
    return result


def write(text: str) -> None:
    """Without waiting for the end of a line."""
    click.echo(text, nl=False)


def draw(results: Sequence["Result"], artifact: Path, picture: Path) -> None:
    """Write the picture; without a round there is nothing to show."""
    stats = total(results)
    if not stats.drafted:
        raise SettingError(f"--plot {picture}: nothing was drafted")
    requests = "1 request" if len(results) == 1 else f"{len(results)} requests"
    shape = f"K = {stats.chain_len}" if stats.tree is None else f"tree {stats.tree}"
    title = f"{artifact.resolve().name}, {shape}, {requests}, {stats.rounds} rounds"
    plots().plot_acceptance(stats, title, picture)


def plots() -> ModuleType:
    """Import what `--plot` needs, which is no part of the runner."""
    from eagle_aot.lab import plots

    return plots
