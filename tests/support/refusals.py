"""What a stated failure of a command looks like."""

from click.testing import Result


def refuses(result: Result, message: str) -> None:
    """Exit code 1 and one line, `Error: ...`, that holds `message`."""
    assert result.exit_code == 1, result.output
    said = beside_stages(result.output)
    assert message in said
    assert said.startswith("Error: "), said
    assert said.count("\n") == 1, said


def beside_stages(stderr: str) -> str:
    """Without the lines that tell a log of stages of several seconds, as there may be any number of
    on a slow machine."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if " s   host peak " not in line)
