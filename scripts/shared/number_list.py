"""Lists of numbers on a command line."""

import click

from eagle_aot.runtime_runner.adaptive.chain_length import AUTO_LENGTH, ChainLen


def numbers(context: click.Context, option: click.Parameter, value: str) -> list[int]:
    """`1,2,3` as whole numbers from 1 on: the callback of an option."""
    parts = value.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"{value!r} is not a list of numbers like 1,2,3")
    return [int(part) for part in parts]


def chain_lengths(context: click.Context, option: click.Parameter, value: str) -> list[ChainLen]:
    """`1,4,auto` as chain lengths: the callback of an option."""
    fixed = [part for part in value.split(",") if part.strip() != AUTO_LENGTH]
    chosen: list[ChainLen] = [AUTO_LENGTH] if len(fixed) < value.count(",") + 1 else []
    return [*(numbers(context, option, ",".join(fixed)) if fixed else []), *chosen]
