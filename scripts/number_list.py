"""Lists of numbers on a command line."""

import click


def numbers(context: click.Context, option: click.Parameter, value: str) -> list[int]:
    """`1,2,3` as whole numbers from 1 on: the callback of an option."""
    parts = value.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"{value!r} is not a list of numbers like 1,2,3")
    return [int(part) for part in parts]
