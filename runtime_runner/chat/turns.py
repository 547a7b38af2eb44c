"""What a user says, a line at a time."""

import sys
from collections.abc import Iterator
from contextlib import suppress

import click

from eagle_aot.common.errors import PromptError

PROMPT = "> "


def read_turns() -> Iterator[str]:
    """From a terminal, where lines can be edited and called back, or else from standard input; up
    to its end, without blank lines."""
    lines = typed() if sys.stdin.isatty() and sys.stdout.isatty() else piped()
    return (line.strip() for line in lines if line.strip())


def typed() -> Iterator[str]:
    """Ctrl-C drops a line, Ctrl-D ends. Lines that are pasted at once are one turn."""
    with suppress(ImportError):  # not every Python has it
        import readline  # `input` edits with it from now on

        readline.parse_and_bind("set enable-bracketed-paste on")
    while True:
        try:
            yield input(PROMPT)
        except KeyboardInterrupt:
            click.echo()
        except EOFError:
            click.echo()
            return


def piped() -> Iterator[str]:
    """Raises PromptError for what is not text."""
    try:
        yield from sys.stdin
    except UnicodeDecodeError as error:
        raise PromptError(f"standard input: cannot be read ({error})") from error
