"""`--tap-layers`: what it means, and what it refuses."""

import pytest

from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.taps import parse_tap_layers


def test_tap_layers_of_the_command_line() -> None:
    assert parse_tap_layers("2,30,57") == parse_tap_layers(" 2, 30,57 ") == (2, 30, 57)
    assert parse_tap_layers("0") == (0,)


@pytest.mark.parametrize("text", ["", "2,", "a,b,c", "2;3", "2.5", "3,2", "2,2", "-1,2"])
def test_other_tap_layers_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"--tap-layers .*: expected"):
        parse_tap_layers(text)
