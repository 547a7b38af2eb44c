"""The process's standard error, held back."""

import os
from threading import Event, Thread

import pytest

from eagle_aot.common.held_stderr import held_stderr


def test_it_is_passed_on_where_the_block_ends_well(capfd: pytest.CaptureFixture[str]) -> None:
    with held_stderr() as said:
        os.write(2, b"one ")
        assert capfd.readouterr().err == ""
        assert said() == "one "
        os.write(2, b"two\n")
    assert capfd.readouterr().err == "one two\n"


def test_it_is_dropped_where_the_block_raises(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="better"), held_stderr():
        os.write(2, b"worse\n")
        raise ValueError("better")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_threads_take_turns(capfd: pytest.CaptureFixture[str]) -> None:
    """Blocks that overlap would leave the process with another's file for good."""
    inside, others = Event(), []

    def hold(text: bytes) -> None:
        with held_stderr():
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
