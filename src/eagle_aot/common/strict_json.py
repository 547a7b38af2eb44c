"""A JSON object from a file that is not trusted: bounded, and with one meaning."""

import json
from pathlib import Path
from typing import Any, NoReturn

MAX_BYTES = 4 << 20  # a manifest has some 20 kB
MAX_DEPTH = 16


def read_object(path: Path) -> dict[str, Any]:
    """The object in `path`. Raises OSError, and ValueError for anything else than one plain object:
    too long, too deep, a key given twice, NaN, bytes that are not UTF-8."""
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
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:40]!r} twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _check_depth(value: Any) -> None:
    """Level by level, so that what is too deep for recursion is found too."""
    level, depth = [value], 0
    while level:
        if depth == MAX_DEPTH:
            raise ValueError("nested too deeply")
        groups = [v.values() if isinstance(v, dict) else v for v in level]
        inner = [one for group in groups for one in group]
        level, depth = [one for one in inner if isinstance(one, dict | list)], depth + 1
