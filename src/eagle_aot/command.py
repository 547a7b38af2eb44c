"""Manners that all our commands share."""

import functools
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import click

from eagle_aot.errors import EagleError


def eagle_command(body: Callable[..., None]) -> click.Command:
    """A click command whose stated failures are one line on stderr and exit code 1.

    Libraries' warnings are not the user's business here; they are kept for our tests.
    """

    @functools.wraps(body)
    def run(**options: Any) -> None:
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            body(**options)
        except EagleError as error:
            raise click.ClickException(" ".join(str(error).split())) from error
        except BrokenPipeError:
            raise  # click ends quietly when the reader is gone
        except OSError as error:
            raise click.ClickException(f"{error.filename or 'output'}: {error.strerror}") from error
        finally:
            logging.disable(logging.NOTSET)

    return click.command(context_settings={"help_option_names": ["-h", "--help"]})(run)
