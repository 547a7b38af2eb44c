"""An interrupt ends a command wherever it meets it."""

import _thread
import signal
import sys
import time
import weakref
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from eagle_aot.common.command import eagle_command
from eagle_aot.common.interrupts import AGAIN, persistent_interrupts


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    """A shell starts its background jobs deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Collected:
    """Something that can be referred to weakly."""


def interrupt_in_a_callback(*_: object) -> None:
    _thread.interrupt_main()
    time.sleep(0)  # the interrupt is raised here


def drop_something() -> None:
    thing = Collected()
    reference = weakref.ref(thing, interrupt_in_a_callback)
    del thing
    assert reference() is None


def test_a_swallowed_interrupt_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), persistent_interrupts():
        drop_something()
        time.sleep(10)
    assert capsys.readouterr().err == ""


def test_it_ends_a_command_with_one_line() -> None:
    def body() -> None:
        drop_something()
        time.sleep(10)

    result = CliRunner().invoke(eagle_command(body))
    assert (result.exit_code, result.stderr) == (1, "Error: interrupted\n")


def test_other_errors_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: seen.append(args.exc_type))
    hook = sys.unraisablehook
    with persistent_interrupts():
        Broken()
    assert seen == [ValueError]
    assert sys.unraisablehook is hook


def test_what_was_swallowed_at_the_very_end_comes_too_late() -> None:
    with persistent_interrupts():
        drop_something()
    time.sleep(2 * AGAIN)  # where an interrupt would be raised
