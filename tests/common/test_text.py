"""What a terminal would obey is shown instead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.common.text import printable


@given(st.text())
def test_nothing_is_left_to_obey_and_nothing_else_changes(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and len(shown) == len(text)
    assert all(new in (old, "\ufffd") for new, old in zip(shown, text, strict=True))


@pytest.mark.parametrize("text", ["", "plain text: 1 %", "d\u00e9j\u00e0 vu \u4e2d \U0001f600"])
def test_text_stays(text: str) -> None:
    assert printable(text) == text


def test_escape_sequences_go() -> None:
    assert printable("\x1b]0;owned\x07\x1b[2J\u202e") == "\ufffd]0;owned\ufffd\ufffd[2J\ufffd"
