"""Whatever ends a command, its user reads one line."""

import io
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.panel import Panel

from eagle_aot import __version__
from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import EagleError
from eagle_aot.common.text import LONGEST_LINE


def command_that_raises(error: BaseException) -> click.Command:
    def body() -> None:
        raise error

    return eagle_command(body)


@pytest.mark.parametrize(("error", "line"), [
    (EagleError("two\nlines"), "Error: two lines\n"),
    (KeyboardInterrupt(), "Error: interrupted\n"),
    (OSError(28, "No space left on device"), "Error: output: No space left on device\n"),
    (EagleError("a\x1b]0;owned\x07\x1b[2Jb"), "Error: a\ufffd]0;owned\ufffd\ufffd[2Jb\n"),
    (FileNotFoundError(2, "No", "\x1b[2J"), "Error: \ufffd[2J: No\n"),
    (IsADirectoryError(21, "Is a directory", "a.png"), "Error: a.png: Is a directory\n"),
])  # fmt: skip
def test_a_stated_failure_is_one_line(error: BaseException, line: str) -> None:
    result = CliRunner().invoke(command_that_raises(error))
    assert (result.exit_code, result.stderr) == (1, line)


def test_every_command_tells_the_version() -> None:
    result = CliRunner().invoke(command_that_raises(KeyboardInterrupt()), ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"eagle-aot, version {__version__}\n")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory.")])
def test_memory_that_ran_out_is_one_line(error: BaseException) -> None:
    result = CliRunner().invoke(command_that_raises(error))
    assert result.exit_code == 1 and result.stderr.startswith("Error: out of memory on the ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_that_cannot_be_written_is_one_line(option: str) -> None:
    program = "from eagle_aot.common.command import eagle_command; eagle_command(lambda: None)()"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program, option], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "Error: output: No space left on device\n")


def test_a_bug_stays_a_bug() -> None:
    assert isinstance(
        CliRunner().invoke(command_that_raises(RuntimeError("shapes"))).exception, RuntimeError
    )


def test_a_line_that_quotes_a_hostile_file_is_cut_in_its_middle() -> None:
    error = EagleError(f"a.json: {'x' * 10**6}: export again")
    line = CliRunner().invoke(command_that_raises(error)).stderr
    assert line.startswith("Error: a.json: xxx") and line.endswith("xxx: export again\n")
    assert len(line) < LONGEST_LINE + 30


def test_streams_that_are_closed_are_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []
    command = eagle_command(lambda: found.append(sys.stdin))
    runner = CliRunner()
    with runner.isolation():
        monkeypatch.setattr(sys, "stdin", None)
        command.main([], standalone_mode=False)
    assert found and found[0] is not None


@pytest.mark.parametrize("limit", [2**28, 2**40])
def test_too_few_addresses_are_stated_before_pytorch_aborts(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr("eagle_aot.common.memory.resource.getrlimit", lambda kind: (limit, -1))
    result = CliRunner().invoke(eagle_command(lambda: None))
    assert result.exit_code == int(limit == 2**28)
    assert ("0.25 GiB of addresses (ulimit -v), 1.25 are needed" in result.stderr) == (
        limit == 2**28
    )


def test_characters_that_a_stream_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of ASCII alone, and a path that is not UTF-8. click writes UTF-8 to any stream."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))

    def body() -> None:
        click.echo("caf\udce9 日")
        Console(width=40).print(Panel("é\udce9…"))

    eagle_command(body)(args=[], standalone_mode=False)
    sys.stdout.flush()
    first, *box = written.getvalue().decode().splitlines()
    assert first == "caf? 日" and r"\xe9\udce9\u2026" in box[1] and "".join(box).isascii()
