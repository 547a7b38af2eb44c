"""`eagle-run --chat`: one turn after the other."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from eagle_aot.common.errors import PromptError
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.chat.conversation import Conversation
from eagle_aot.runtime_runner.chat.interrupt import interruptible
from eagle_aot.runtime_runner.chat.turns import read_turns

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.images.picture import Picture
    from eagle_aot.runtime_runner.results.result import Result
    from eagle_aot.runtime_runner.runner import Runner

EXIT, RESET, IMAGE = "/exit", "/reset", "/image"
HELP = f"Ctrl-C stops an answer, {RESET} begins again, {EXIT} or Ctrl-D ends."
HELP_WITH_IMAGES = f"{IMAGE} FILE shows a picture with the next turn. {HELP}"
CUT = {
    "length": "cut at --max-new-tokens",
    "context": "cut at the end of the context",
    "cancelled": "stopped",
}
"""What a reader should know of how an answer ended."""


class Chat:
    """A conversation with whoever types; answers go to stdout, all else to stderr."""

    def __init__(
        self,
        runner: "Runner",
        system: str | None,
        *,
        quiet: bool,
        as_json: bool,
        images: Sequence[Path] = (),
        image_tokens: int | None = None,
        **options: Any,
    ) -> None:
        """`images` are the first turn's; `options` are those of `Runner.generate`."""
        self._conversation = Conversation(runner, system)
        self._reader, self._image_tokens = runner.reader, image_tokens
        self._images: list[Picture] = [
            self._reader.picture(image, image_tokens) for image in images
        ]
        self._quiet, self._as_json, self._options = quiet, as_json, options
        self._beside = Console(stderr=True, highlight=False, soft_wrap=True)

    def run(self) -> None:
        """Until the last turn. A turn that cannot be answered is refused, and the next one read."""
        self._tell(HELP if self._reader.pictures is None else HELP_WITH_IMAGES)
        for text in read_turns():
            if text == EXIT:
                return
            if text == RESET:
                self._conversation.reset()
                self._images.clear()
                self._tell("The conversation begins again.")
                continue
            command, _, file = text.partition(" ")
            try:
                if command == IMAGE:
                    self._show(file.strip())
                else:
                    self._answer(text)
            except PromptError as error:
                click.echo(f"Error: {one_line(str(error))}", err=True)

    def _show(self, file: str) -> None:
        """Keep a picture for the next turn."""
        self._images.append(self._reader.picture(file, self._image_tokens))
        self._tell(f"{file}: {self._images[-1].count} tokens of the next turn.")

    def _answer(self, text: str) -> None:
        before = self._conversation.forgotten
        with interruptible() as cancelled:
            result = self._conversation.say(
                text,
                images=self._images,
                on_text=None if self._as_json else write,
                cancelled=cancelled,
                **self._options,
            )
        self._images.clear()
        click.echo(json.dumps(result.to_json()) if self._as_json else "")
        if forgotten := self._conversation.forgotten - before:
            click.echo(
                f"The context is full: forgot the oldest of its turns ({forgotten})", err=True
            )
        self._tell(cost(result))

    def _tell(self, text: str) -> None:
        if not self._quiet:
            self._beside.print(text, style="dim", markup=False)


def write(text: str) -> None:
    """Without waiting for the end of a line."""
    click.echo(text, nl=False)


def cost(result: "Result") -> str:
    """An answer's, on one line."""
    stats = result.stats
    parts = [f"{len(result.token_ids)} tokens"]
    if stats.tokens_per_second is not None:
        parts.append(f"{stats.tokens_per_second:.0f} tokens/s")
    if stats.drafted and stats.tau is not None:
        parts.append(f"tau {stats.tau:.2f}")
    parts.append(f"{result.cached_tokens} of {result.prompt_tokens} prompt tokens kept")
    if result.finish_reason in CUT:
        parts.append(CUT[result.finish_reason])
    if result.parameters.seed is not None:
        parts.append(f"seed {result.parameters.seed}")
    return ", ".join(parts)
