"""Lists on a command line."""

import click
import pytest

from eagle_aot.lab.options import chain_lengths
from eagle_aot.runtime_runner.adaptive.chain_length import ChainLen

OPTION = click.Option(["--chain-lens"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4", [4]), ("auto", ["auto"]), ("1, 7", [1, 7]), ("auto,1,2", [1, 2, "auto"])],
)
def test_chain_lengths(text: str, expected: list[ChainLen]) -> None:
    assert chain_lengths(click.Context(click.Command("it")), OPTION, text) == expected


@pytest.mark.parametrize("text", ["", "0", "x", "1,,2", "1.5", "auto,"])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        chain_lengths(click.Context(click.Command("it")), OPTION, text)
