"""`--tap-layers`: the boundaries that it takes, and those that it refuses."""

from typing import Any

import pytest

from eagle_aot.common.errors import SettingError
from eagle_aot.export.spec import ExportSpec, checked_tap_layers


@pytest.mark.parametrize("taps", [(2, 30, 57), (0,)])
def test_ascending_tap_layers_are_taken(taps: tuple[int, ...]) -> None:
    assert checked_tap_layers(list(taps)) == ExportSpec(tap_layers=taps).tap_layers == taps


@pytest.mark.parametrize("taps", [(), ("a",), (2.5,), (True,), (3, 2), (2, 2), (-1, 2)])
def test_other_tap_layers_are_refused(taps: tuple[Any, ...]) -> None:
    with pytest.raises(SettingError, match=r"--tap-layers .*: expected"):
        checked_tap_layers(taps)
    with pytest.raises(SettingError, match=r"--tap-layers .*: expected"):
        ExportSpec(tap_layers=taps)
