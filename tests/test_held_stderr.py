"""The process's standard error, held back."""

import os

import pytest

from eagle_aot.held_stderr import held_stderr


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
