"""`eagle-run --chat`: reads the user's turns, a line each, and answers them."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from eagle_aot.common.errors import PromptError
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.frontend.conversation import Conversation
from eagle_aot.runtime_runner.frontend.report import write

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.cli import RunSpec
    from eagle_aot.runtime_runner.frontend.generation import Result
    from eagle_aot.runtime_runner.runner import Runner

PROMPT = "> "
EXIT, RESET, IMAGE = "/exit", "/reset", "/image"
HELP = f"Ctrl-C stops an answer, {RESET} begins again, {EXIT} or Ctrl-D ends."
HELP_WITH_IMAGES = f"{IMAGE} FILE shows an image with the next turn. {HELP}"
FINISH_NOTES = {
    "length": "cut at --max-new-tokens",
    "context": "cut at the end of the context",
    "cancelled": "stopped",
}
"""Notes that are printed about answers that were cut off."""


class Chat:
    """A conversation in a terminal: answers go to stdout, everything else to stderr."""

    def __init__(self, runner: "Runner", spec: "RunSpec", options: dict[str, Any]) -> None:
        """`options` are those of `Runner.generate`."""
        self._conversation = Conversation(runner, options.pop("system", None))
        self._reader, self._spec, self._options = runner.reader, spec, options
        self._images = [self._reader.read_image(i, spec.image_tokens) for i in spec.images]
        self._stderr = Console(stderr=True, highlight=False, soft_wrap=True)

    def run(self) -> None:
        """Answer all turns. An error in a turn is printed, and the next turn is read."""
        self._note(HELP if self._reader.image_reader is None else HELP_WITH_IMAGES)
        for text in read_turns():
            if text == EXIT:
                return
            if text == RESET:
                self._conversation.reset()
                self._images.clear()
                self._note("The conversation begins again.")
                continue
            command, _, file = text.partition(" ")
            try:
                if command == IMAGE:
                    self._add_image(file.strip())
                else:
                    self._answer(text)
            except PromptError as error:
                click.echo(f"Error: {one_line(str(error))}", err=True)

    def _add_image(self, file: str) -> None:
        """Read an image for the next turn."""
        self._images.append(self._reader.read_image(file, self._spec.image_tokens))
        self._note(f"{file}: {self._images[-1].count} tokens of the next turn.")

    def _answer(self, text: str) -> None:
        forgotten_before = self._conversation.forgotten
        with interruptible() as interrupted:
            result = self._conversation.say(
                text,
                images=self._images,
                on_text=None if self._spec.as_json else write,
                cancelled=interrupted,
                **self._options,
            )
        self._images.clear()
        click.echo(json.dumps(result.to_json()) if self._spec.as_json else "")
        if forgotten := self._conversation.forgotten - forgotten_before:
            click.echo(
                f"The context is full: forgot the oldest of its turns ({forgotten})", err=True
            )
        self._note(cost_line(result))

    def _note(self, text: str) -> None:
        if not self._spec.quiet:
            self._stderr.print(text, style="dim", markup=False)


def cost_line(result: "Result") -> str:
    """Return what an answer cost, in one line."""
    stats = result.stats
    parts = [f"{len(result.token_ids)} tokens"]
    if stats.tokens_per_second is not None:
        parts.append(f"{stats.tokens_per_second:.0f} tokens/s")
    if stats.drafted and stats.tau is not None:
        parts.append(f"tau {stats.tau:.2f}")
    parts.append(f"{result.cached_tokens} of {result.prompt_tokens} prompt tokens cached")
    if result.finish_reason in FINISH_NOTES:
        parts.append(FINISH_NOTES[result.finish_reason])
    if result.parameters.seed is not None:
        parts.append(f"seed {result.parameters.seed}")
    return ", ".join(parts)


def read_turns() -> Iterator[str]:
    """Yield the lines of a terminal, where they can be edited and recalled, or of standard input,
    without blank lines."""
    lines = read_terminal() if sys.stdin.isatty() and sys.stdout.isatty() else read_pipe()
    return (line.strip() for line in lines if line.strip())


def read_terminal() -> Iterator[str]:
    """Yield typed lines; Ctrl-C drops a line, Ctrl-D ends. Lines pasted at once are one turn."""
    with suppress(ImportError):  # not every Python has it
        import readline  # lets `input` edit lines

        readline.parse_and_bind("set enable-bracketed-paste on")
    while True:
        try:
            yield input(PROMPT)
        except KeyboardInterrupt:
            click.echo()
        except EOFError:
            click.echo()
            return


def read_pipe() -> Iterator[str]:
    """Yield the lines of standard input. Raises PromptError for what is not text."""
    try:
        yield from sys.stdin
    except UnicodeDecodeError as error:
        raise PromptError(f"standard input: cannot be read ({error})") from error


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed within the block. A second Ctrl-C
    raises KeyboardInterrupt. For the main thread only."""
    pressed = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            signal.default_int_handler(number, frame)
        pressed = True

    previous_handler = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, previous_handler)
