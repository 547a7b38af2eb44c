"""`--tap-layers`: the boundaries that a drafter taps, whatever its checkpoint says."""

from collections.abc import Sequence

from eagle_aot.common.errors import SettingError


def parse_tap_layers(text: str | None) -> tuple[int, ...] | None:
    """`"2,30,57"` as boundaries, None as none named.

    Raises SettingError unless they are distinct and ascending.
    """
    if text is None:
        return None
    try:
        taps = [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"--tap-layers {text!r}: expected whole numbers, a,b,c") from None
    return checked_tap_layers(taps)


def checked_tap_layers(taps: Sequence[int]) -> tuple[int, ...]:
    """`taps`. Raises SettingError unless they are distinct and ascending."""
    plain = all(type(tap) is int and tap >= 0 for tap in taps)
    if not taps or not plain or list(taps) != sorted(set(taps)):
        raise SettingError(f"--tap-layers {list(taps)}: expected distinct, ascending boundaries")
    return tuple(taps)
