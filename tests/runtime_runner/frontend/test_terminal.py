"""Turns from a pipe and from a real terminal, and Ctrl-C."""

import io
import os
import pty
import select
import signal
import sys
import time

import pytest

from eagle_aot.common.errors import PromptError
from eagle_aot.runtime_runner.frontend.terminal import interruptible, read_turns

PROGRAM = """
from eagle_aot.runtime_runner.frontend.terminal import read_turns
for turn in read_turns():
    print(f"[{turn!r}]", flush=True)
print("[end]", flush=True)
"""
SECONDS = 20.0


def piped(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8")


def test_every_line_of_a_pipe_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", piped("Hello\n\n  Grüße \r\nlast".encode()))
    assert list(read_turns()) == ["Hello", "Grüße", "last"]


def test_input_that_is_not_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", piped(b"\xff\xfe\n"))
    with pytest.raises(PromptError, match="standard input: cannot be read"):
        list(read_turns())


class Terminal:
    """A program at a terminal."""

    def __init__(self, program: str) -> None:
        self._shown = b""
        self.child, self._end = pty.fork()
        if self.child == 0:
            os.environ["TERM"] = "xterm"
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a background job ignores
            os.execv(sys.executable, [sys.executable, "-c", program])

    def type(self, keys: str, expecting: str) -> None:
        """Press keys and wait for the program's output."""
        os.write(self._end, keys.encode())
        self.wait(expecting)

    def press_until(self, key: str, expecting: str) -> None:
        """Press a key until the program reacts; it misses signals between two calls of `select`."""
        presses = 0
        while not self.shows(expecting, within=0.5):
            presses += 1
            assert presses < 2 * SECONDS, self._shown
            os.write(self._end, key.encode())

    def wait(self, expecting: str) -> None:
        assert self.shows(expecting, within=SECONDS), self._shown

    def shows(self, expecting: str, within: float) -> bool:
        """Whether the output comes within some seconds; output before it is dropped."""
        deadline = time.monotonic() + within
        while expecting.encode() not in self._shown:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._end], [], [], left)[0]:
                return False
            self._shown += os.read(self._end, 4096)
        self._shown = self._shown.partition(expecting.encode())[2]
        return True


def test_a_terminal_edits_lines_and_takes_a_paste_as_one_turn() -> None:
    terminal = Terminal(PROGRAM)
    terminal.wait("> ")
    terminal.type("Hallo\x7f\x01\x04h\r", "['hall']")  # backspace, to the beginning, delete, h
    terminal.wait("> ")
    terminal.type("\x1b[200~two\nlines\x1b[201~\r", "['two\\nlines']")
    terminal.wait("> ")
    terminal.type("dropped", "dropped")
    terminal.press_until("\x03", "> ")
    terminal.type("\x1b[A\x1b[A\r", "['hall']")  # what was typed before
    terminal.wait("> ")
    terminal.type("\x04", "[end]")
    assert os.waitpid(terminal.child, 0)[1] == 0


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_second_ctrl_c_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as pressed:
        assert not pressed()
        interrupt()
        assert pressed()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGINT) is before
    with interruptible() as pressed:
        assert not pressed()
