"""Control characters are replaced before a terminal executes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.common.text import printable


@given(st.text())
def test_control_characters_alone_are_replaced(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and len(shown) == len(text)
    assert all(new in (old, "\ufffd") for new, old in zip(shown, text, strict=True))


@pytest.mark.parametrize("text", ["", "plain text: 1 %", "d\u00e9j\u00e0 vu \u4e2d \U0001f600"])
def test_printable_text_does_not_change(text: str) -> None:
    assert printable(text) == text


def test_escape_sequences_are_replaced() -> None:
    assert printable("\x1b]0;owned\x07\x1b[2J\u202e") == "\ufffd]0;owned\ufffd\ufffd[2J\ufffd"
