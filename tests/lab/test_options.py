"""Lists of chain lengths on a command line."""

import click
import pytest

from eagle_aot.lab.bench import auto
from eagle_aot.lab.checks import cli as checks
from eagle_aot.lab.options import parse_chain_lens
from eagle_aot.runtime_runner.decode.shape import ChainLen


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4", (4,)), ("auto", ("auto",)), ("1, 7", (1, 7)), ("auto,1,2", ("auto", 1, 2))],
)
def test_chain_lengths_are_numbers_and_auto(text: str, expected: tuple[ChainLen, ...]) -> None:
    assert parse_chain_lens(text) == expected


@pytest.mark.parametrize("text", ["", "0", "x", "1,,2", "1.5", "auto,"])
def test_other_chain_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a list"):
        parse_chain_lens(text)


@pytest.mark.parametrize("command", [auto.main, checks.main])
def test_chain_lens_are_one_word(command: click.Command) -> None:
    context = command.make_context("command", ["artifact", "--chain-lens", "1,auto"])
    assert context.params["chain_lens"] == (1, "auto")
