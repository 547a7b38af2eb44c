"""Standard error is held back in turns, and an interrupt ends a command wherever it meets it."""

import _thread
import os
import signal
import sys
import time
import weakref
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from click.testing import CliRunner

from eagle_aot.common.command import eagle_command
from eagle_aot.common.process import RETRY_SECONDS, captured_stderr, persistent_interrupts


def test_stderr_is_passed_on_where_the_block_ends_well(capfd: pytest.CaptureFixture[str]) -> None:
    with captured_stderr() as said:
        os.write(2, b"one ")
        assert capfd.readouterr().err == ""
        assert said() == "one "
        os.write(2, b"two\n")
    assert capfd.readouterr().err == "one two\n"


def test_stderr_is_dropped_where_the_block_raises(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="better"), captured_stderr():
        os.write(2, b"worse\n")
        raise ValueError("better")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_threads_take_turns(capfd: pytest.CaptureFixture[str]) -> None:
    """Blocks that overlap would leave the process with another's file for good."""
    inside, others = Event(), []

    def hold(text: bytes) -> None:
        with captured_stderr():
            inside.wait(0.05)
            os.write(2, text)

    for number in range(4):
        others.append(Thread(target=hold, args=(b"%d\n" % number,)))
        others[-1].start()
    for thread in others:
        thread.join()
    os.write(2, b"after\n")
    lines = capfd.readouterr().err.split()
    assert sorted(lines[:-1]) == ["0", "1", "2", "3"] and lines[-1] == "after"


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


def wait_to_be_interrupted() -> None:
    """Ten seconds at most. An interrupt that a thread makes does not wake a sleep."""
    for _ in range(1000):
        time.sleep(0.01)


def test_a_swallowed_interrupt_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), persistent_interrupts():
        drop_something()
        wait_to_be_interrupted()
    assert capsys.readouterr().err == ""


def test_an_interrupt_ends_a_command_with_one_line() -> None:
    def body() -> None:
        drop_something()
        wait_to_be_interrupted()

    result = CliRunner().invoke(eagle_command(body))
    assert (result.exit_code, result.stderr) == (1, "Error: interrupted\n")


def test_unraisable_errors_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_interrupt_swallowed_at_the_very_end_comes_too_late() -> None:
    with persistent_interrupts():
        drop_something()
    time.sleep(2 * RETRY_SECONDS)  # where an interrupt would be raised
