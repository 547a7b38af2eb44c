"""The base of all commands: errors, warnings, interrupts and help."""

import functools
import importlib.util
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

from eagle_aot import __version__
from eagle_aot.common.errors import EagleError, UnsupportedError, reason
from eagle_aot.common.memory import check_address_space, shortage
from eagle_aot.common.process import open_standard_streams, persistent_interrupts
from eagle_aot.common.text import one_line

HEADINGS = "Prompt", "Generation", "Speculation", "Engine", "Output"
"""Headings in --help that have the same order in all commands."""


class Command(click.Command):
    """A command whose --help groups its options, which refuses an option of one value that is given
    twice, and whose every write to a full disk fails in one line, that of --help and --version
    included."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError for an option of one value that is given twice."""
        _, _, order = self.make_parser(context).parse_args(list(args))
        options = (p for p in order if isinstance(p, click.Option) and not p.is_flag)
        counts = Counter(option.opts[0] for option in options if not option.multiple)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise click.UsageError(f"{twice[0]}: may be given only once", context)
        return super().parse_args(context, args)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under the headings of their groups, in the order of the options, and
        of `HEADINGS`."""
        groups: dict[str, list[tuple[str, str]]] = {}
        options = (p for p in self.get_params(context) if isinstance(p, click.Option))
        for parameter in options:
            if (row := parameter.get_help_record(context)) is not None:
                groups.setdefault(getattr(parameter, "group", "Options"), []).append(row)
        ordered = iter(heading for heading in HEADINGS if heading in groups)
        for group in groups:
            heading = next(ordered) if group in HEADINGS else group
            with formatter.section(heading):
                formatter.write_dl(groups[heading])

    def main(self, *arguments: Any, **settings: Any) -> Any:
        try:
            return super().main(*arguments, **settings)
        except OSError as error:
            click.echo(f"Error: {one_line(user_error_line(error) or '')}", err=True)
            sys.exit(1)


def eagle_command(body: Callable[..., None]) -> click.Command:
    """Make a click command that reports EagleError in one line on stderr, with exit code 1.

    Warnings of libraries are suppressed, except when Python is started with -W.
    """

    @functools.wraps(body)
    def run(**options: Any) -> None:
        open_standard_streams()
        try:
            check_address_space()
            with silenced_libraries(), persistent_interrupts():
                body(**options)
        except EagleError as error:
            raise click.ClickException(one_line(str(error))) from error
        except KeyboardInterrupt as error:
            raise click.ClickException("interrupted") from error
        except BrokenPipeError:
            raise  # click ends quietly when the reader is gone
        except (MemoryError, RuntimeError, OSError) as error:
            line = user_error_line(error)
            if line is None:
                raise
            raise click.ClickException(one_line(line)) from error

    command = click.command(cls=Command, context_settings={"help_option_names": ["-h", "--help"]})(
        run
    )
    return click.version_option(__version__, prog_name="eagle-aot")(command)


@contextmanager
def silenced_libraries() -> Iterator[None]:
    """Suppress warnings of libraries, except when Python is started with -W."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(disabled)


def given_options(*, but: Collection[str]) -> list[str]:
    """Return the options on the command line, as a user writes them, except those in `but`."""
    context = click.get_current_context()
    return sorted(
        option.opts[0]
        for option in context.command.params
        if isinstance(option, click.Option)
        and option.name is not None
        and option.name not in but
        and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    )


def check_installed(name: str, *, extra: str) -> None:
    """Raise UnsupportedError unless a package of one of our extras is installed."""
    if importlib.util.find_spec(name) is None:
        raise UnsupportedError(f'{name} is not installed: run pip install "eagle-aot[{extra}]"')


def user_error_line(error: Exception) -> str | None:
    """Return one line for an error that a user can fix; None for a bug of ours."""
    if isinstance(error, OSError):
        return f"{error.filename or 'output'}: {reason(error)}"
    return shortage(error)
