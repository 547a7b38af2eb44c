"""What a stated failure of a command looks like."""

from click.testing import Result


def refuses(result: Result, message: str) -> None:
    """Exit code 1 and one line, `Error: ...`, that holds `message`."""
    assert result.exit_code == 1, result.output
    assert message in result.output
    assert result.output.startswith("Error: "), result.output
    assert result.output.count("\n") == 1, result.output
