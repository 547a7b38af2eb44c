"""Read a JSON object from a file that is not trusted."""

import json
from pathlib import Path
from typing import Any, NoReturn

MAX_BYTES = 4 << 20  # a manifest has some 20 kB
MAX_DEPTH = 16


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in `path`. Raises OSError, and ValueError for anything but a plain object:
    too long, too deep, duplicate keys, NaN, bytes that are not UTF-8."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"longer than {MAX_BYTES >> 20} MiB")
    try:
        value = json.loads(
            content.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not an object")
    _check_depth(value)
    # Neither half of a character, written \ud800, nor infinity, written 1e999.
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:40]!r} twice")
    return unique


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _check_depth(value: Any) -> None:
    """Check level by level, because recursion could overflow."""
    level, depth = [value], 0
    while level:
        if depth == MAX_DEPTH:
            raise ValueError("nested too deeply")
        groups = [v.values() if isinstance(v, dict) else v for v in level]
        values = [value for group in groups for value in group]
        level, depth = [value for value in values if isinstance(value, dict | list)], depth + 1
