"""Typed reading of a config.json: a value of another kind is an error that names its key."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_aot.common.errors import CheckpointError

MOST = 2**24
"""Beyond any size, count or context of a published model; products of a few still fit in int64."""
MOST_LAYERS = 1024
LARGEST = sys.float_info.max
MOST_DIGITS = 60
"""Characters of a value that an error line quotes."""


@dataclass(frozen=True, slots=True)
class ConfigSection:
    """One object of a config.json. A key that is absent or null has the default, if there is one.

    Every method raises CheckpointError for a missing key without a default and for a value of
    another kind.
    """

    values: Mapping[str, Any]
    where: Path

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def count(self, key: str, default: int | None = None, most: int = MOST) -> int:
        """A positive integer that is not absurd: what it counts may be allocated."""
        value = self._value(key, default)
        if type(value) is not int or value < 1:
            raise self._wrong(key, value, "a positive integer")
        if value > most:
            raise self._wrong(key, value, f"at most {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not 0 < value <= LARGEST:
            raise self._wrong(key, value, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return tuple(value)

    def section(self, key: str) -> "ConfigSection":
        """A nested object, empty when the key is absent or null."""
        value = self.values.get(key)
        if not isinstance(value, dict | None):
            raise self._wrong(key, value, "an object")
        return ConfigSection(value or {}, self.where)

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"{self.where}: key {key!r} is missing")
        return value

    def _wrong(self, key: str, value: object, expected: str) -> CheckpointError:
        shown = repr(value)
        if len(shown) > MOST_DIGITS:
            shown = f"{shown[:MOST_DIGITS]}..."
        return CheckpointError(f"{self.where}: {key} is {shown}, expected {expected}")
