"""Damage to the structure of JSON: what is parsed well and means nonsense."""

import json
from random import Random
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 7, 2**31, 2**40, 2**63, 10**9, 10**30, -(2**63)),
    *(0.5, -0.5, 1e-320, 1e308, float("nan"), float("inf")),
    *(None, True, False, "", "x", "\0", "\ud800", "../x", "9" * 5000),
    *([], {}, [[]], [None], {"": None}),
)
DEEP = 5000  # levels of nesting, more than a parser's stack may hold


def damaged_json(text: bytes, random: Random) -> bytes:
    """Parse, change one to four things, and write again."""
    value = json.loads(text)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        value = damaged_value(value, random)
    return dumped(value, random)


def dumped(value: Any, random: Random) -> bytes:
    """As JSON; now and then nested too deeply."""
    text = json.dumps(value)
    if random.random() < 0.01:
        text = "[" * DEEP + text + "]" * DEEP
    return text.encode()


def damaged_value(value: Any, random: Random) -> Any:
    """A copy with one change somewhere in the tree."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        key = random.choice(list(value))
        return damaged_object(value, key, random)
    if isinstance(value, list) and value and random.random() < 0.85:
        place = random.randrange(len(value))
        changed = damaged_value(value[place], random)
        kept = [*value[:place], *value[place + 1 :]]
        return random.choice(([*value[:place], changed, *value[place + 1 :]], kept, 3 * value))
    if isinstance(value, str) and value[:1] in ("{", "[") and random.random() < 0.9:
        return damaged_text(value, random)
    if isinstance(value, int | float) and random.random() < 0.4:
        return value + random.choice((-1, 1, 8, -value, value))
    return random.choice((*ODD_VALUES, [value], {"x": value}, str(value)))


def damaged_object(value: dict[str, Any], key: str, random: Random) -> dict[str, Any]:
    """One entry changed, moved, renamed, left out, or given another's value."""
    rest = {name: v for name, v in value.items() if name != key}
    match random.randrange(8):
        case 0:
            return rest
        case 1:
            return {**rest, key + random.choice(("x", ".0", "\0", ".weight")): value[key]}
        case 2:
            return {**value, key: value[random.choice(list(value))]}
        case 3:
            return {**value, random.choice(list(value)) + "2": value[key]}
    return {**value, key: damaged_value(value[key], random)}


def damaged_text(text: str, random: Random) -> str:
    """JSON within a string, as torchao keeps it."""
    try:
        return json.dumps(damaged_value(json.loads(text), random))
    except ValueError:
        return text[1:]
