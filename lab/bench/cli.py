"""`eagle-bench`: the command of each part, chosen by --part."""

from importlib import import_module
from typing import Any

import click

from eagle_aot.common.command import Command
from eagle_aot.common.text import nearest

PARTS = {
    "rounds": "eagle_aot.lab.bench.rounds",
    "batch": "eagle_aot.lab.bench.batch",
    "clients": "eagle_aot.lab.bench.clients",
    "prefix": "eagle_aot.lab.bench.prefix",
    "images": "eagle_aot.lab.bench.images",
    "auto": "eagle_aot.lab.bench.auto",
    "constraints": "eagle_aot.lab.bench.constraints",
    "server": "eagle_aot.lab.bench.server.cli",
    "kernels": "eagle_aot.lab.bench.kernels.cli",
}
"""What can be measured, and the module whose `main` measures it."""


PART = click.Option(["--part"], type=click.Choice(list(PARTS)), default="rounds", show_default=True,
                    help="What to measure. Options of a part: --part P --help.",
                    expose_value=False)  # fmt: skip
"""An option for the help of each part: `split_part` has taken it out of the arguments."""


class PartCommand(Command):
    """A command that hands its arguments to the command of the part that --part names."""

    def make_context(
        self, info_name: str | None, args: list[str], *others: Any, **extra: Any
    ) -> click.Context:
        """Parse the arguments as the part's command does."""
        name, rest = split_part(args)
        command: click.Command = import_module(PARTS[name]).main
        if PART not in command.params:
            command.params.insert(0, PART)
        return command.make_context(f"{info_name} --part {name}", rest, *others, **extra)

    def invoke(self, context: click.Context) -> Any:
        """Run the part's command."""
        return context.command.invoke(context)


def split_part(args: list[str]) -> tuple[str, list[str]]:
    """Take --part out of the arguments. Raises UsageError for a part that does not exist."""
    name, rest, words = "rounds", list[str](), iter(args)
    for word in words:
        if word == "--part":
            name = next(words, "")
        elif word.startswith("--part="):
            name = word.removeprefix("--part=")
        else:
            rest.append(word)
    if name not in PARTS:
        raise click.UsageError(
            f"--part {name!r}: must be one of {', '.join(PARTS)}{nearest(name, PARTS)}"
        )
    return name, rest


main = PartCommand("eagle-bench")
