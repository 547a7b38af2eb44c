"""Prompts of a file that could not be answered."""

import json

import click

from eagle_aot.common.errors import EagleError


class Failures:
    """Told one by one, on stderr, and as JSON in the place of their answers; then all at once."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._lines: list[str] = []

    def add(self, number: int, error: str) -> None:
        """The prompt of that number, counted from 1, and why."""
        self._lines.append(f"prompt {number}: {error}")
        if self._as_json:
            click.echo(json.dumps({"error": error}))
        else:
            click.echo("")
            click.echo(f"Error: {self._lines[-1]}", err=True)

    def raise_any(self, count: int) -> None:
        """Raise EagleError if any of so many failed."""
        if self._lines:
            raise EagleError(f"{len(self._lines)} of {count} failed: {self._lines[0]}")
