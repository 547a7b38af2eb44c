"""Values that arrive from outside as structs, in any thread."""

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_lock = threading.Lock()
_described = set[object]()


def convert(value: Any, kind: type[T], *, str_keys: bool = False) -> T:
    """Do what `msgspec.convert` does. Raises its errors."""
    describe(kind)
    return msgspec.convert(value, kind, str_keys=str_keys)


def describe(kind: object) -> None:
    """Let msgspec describe a type before a value is read as it, or its fields are inspected.

    Its description is used by other threads before it is whole (msgspec 0.22): two threads that are
    the first to read a type can end the process.
    """
    with _lock:
        if kind not in _described:
            msgspec.json.Decoder(kind)
            _described.add(kind)
