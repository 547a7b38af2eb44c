"""Typed reading of a config.json; a value of another type is an error that names its key."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_aot.common.errors import CheckpointError

MAX_COUNT = 2**24
"""More than any size, count or context of a published model; products of a few fit in int64."""
MAX_LAYERS = 1024
MAX_NUMBER = sys.float_info.max
QUOTED_CHARACTERS = 60
"""How many characters of a value an error line quotes."""


@dataclass(frozen=True, slots=True)
class ConfigSection:
    """One object of a config.json; a key that is absent or null has the default, if there is one.

    Every method raises CheckpointError for a missing key without a default and for a value of
    another type.
    """

    values: Mapping[str, Any]
    where: Path

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.values.get(key) is not None

    def count(self, key: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        """Read a positive integer of at most `most`; memory may be allocated for it."""
        value = self._value(key, default)
        if type(value) is not int or value < 1:
            raise self._wrong(key, value, "a positive integer")
        if value > most:
            raise self._wrong(key, value, f"at most {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Read a positive number."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not 0 < value <= MAX_NUMBER:
            raise self._wrong(key, value, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Read true or false."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Read a string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a list of strings."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Read a list of positive numbers."""
        value = self._value(key, None)
        numbers = value if isinstance(value, list) else []
        are_numbers = all(type(item) in (int, float) for item in numbers)
        if not numbers or not are_numbers or not all(0 < item <= MAX_NUMBER for item in numbers):
            raise self._wrong(key, value, "a list of positive numbers")
        return tuple(map(float, numbers))

    def any_of(self, keys: Sequence[str], default: Any) -> Any:
        """Return the value that a fact has under any of its `keys`, text in lower case.

        Raises CheckpointError if two keys contradict each other.
        """
        values = {key: _lower(self.values[key]) for key in keys if self.has(key)}
        if len(set(map(str, values.values()))) > 1:
            facts = " and ".join(f"{key} {value!r}" for key, value in values.items())
            raise CheckpointError(f"{self.where}: {facts} contradict each other")
        return next(iter(values.values()), default)

    def with_facts_of(
        self, other: "ConfigSection", facts: Sequence[Sequence[str]]
    ) -> "ConfigSection":
        """Return this section with what only `other` says. Raises CheckpointError for two values of
        one of `facts`, each the keys that it may have."""
        for keys in facts:
            value, others = self.any_of(keys, None), other.any_of(keys, None)
            if value is not None and others is not None and value != others:
                raise CheckpointError(
                    f"{self.where} says {keys[0]} {value!r} and {other.where} says {others!r}: "
                    "correct the one that is wrong"
                )
        stated = {key: value for key, value in self.values.items() if value is not None}
        return ConfigSection({**other.values, **stated}, self.where)

    def section(self, key: str) -> "ConfigSection":
        """Read a nested object; empty if the key is absent or null."""
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
        if len(shown) > QUOTED_CHARACTERS:
            shown = f"{shown[:QUOTED_CHARACTERS]}..."
        return CheckpointError(f"{self.where}: {key} is {shown}, expected {expected}")


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value
