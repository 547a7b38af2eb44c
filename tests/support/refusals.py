"""What a stated failure of a command looks like."""

from click.testing import Result

from support.stages import beside_stages


def refuses(result: Result, message: str) -> None:
    """Exit code 1 and one line, `Error: ...`, that holds `message`."""
    assert result.exit_code == 1, result.output
    said = beside_stages(result.output)
    assert message in said
    assert said.startswith("Error: "), said
    assert said.count("\n") == 1, said
