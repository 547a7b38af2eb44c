"""Options that the commands of the lab have in common."""

import click

from eagle_aot.runtime_runner.adaptive.chain_length import AUTO_LENGTH, ChainLen
from eagle_aot.runtime_runner.options import drafter_option

__all__ = ["commit_option", "drafter_option", "json_option", "no_cuda_graph_option"]

no_cuda_graph_option = click.option(
    "--no-cuda-graph", is_flag=True, help="Launch every kernel of a round by itself."
)
commit_option = click.option("--commit", help="Default: what git says of the package.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def numbers(context: click.Context, option: click.Parameter, value: str) -> list[int]:
    """`1,2,3` as whole numbers from 1 on: the callback of an option."""
    parts = value.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"{value!r} is not a list of numbers like 1,2,3")
    return [int(part) for part in parts]


def parse_chain_lens(text: str) -> tuple[ChainLen, ...]:
    """Read `1,4,auto` as chain lengths. Raises ValueError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word == AUTO_LENGTH or (word.isdecimal() and int(word)) for word in words):
        raise ValueError(f"expected a list like 1,2,3 or 4,{AUTO_LENGTH}")
    return tuple(AUTO_LENGTH if word == AUTO_LENGTH else int(word) for word in words)
