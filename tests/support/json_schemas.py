"""Random JSON schemas, and texts that are nearly schemas."""

import json
import random
from typing import Any

WORDS = "a", "name", "größe", "日本", 'q"uote', "\\", "🙂", "x y"
Schema = dict[str, Any]


def random_schema(rng: random.Random, depth: int = 3) -> Schema:
    """Return a schema that some value satisfies."""
    leaves = [boolean, integer, number, string, constant, enum, null]
    makers = leaves if depth == 0 else [*leaves, array, object_, object_, any_of]
    return rng.choice(makers)(rng, depth)


def boolean(rng: random.Random, depth: int) -> Schema:
    return {"type": "boolean"}


def null(rng: random.Random, depth: int) -> Schema:
    return {"type": "null"}


def integer(rng: random.Random, depth: int) -> Schema:
    low = rng.randint(-100, 100)
    return {"type": "integer", "minimum": low, "maximum": low + rng.choice([0, 3, 1000])}


def number(rng: random.Random, depth: int) -> Schema:
    low = rng.randint(-100, 100)
    return {"type": "number", "minimum": low, "maximum": low + rng.randint(1, 99)}


def string(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 3)
    lengths: Schema = {"minLength": least, "maxLength": least + rng.randint(0, 9)}
    patterns: Schema = {
        "pattern": rng.choice(["^[a-z]{1,5}$", "^(ab|ba)+$", "^[0-9]{4}-[0-9]{2}$"])
    }
    return {"type": "string"} | rng.choice([lengths, patterns])


def constant(rng: random.Random, depth: int) -> Schema:
    return {"const": rng.choice([1, "b", None, True, [1, "c"], {"k": 2}])}


def enum(rng: random.Random, depth: int) -> Schema:
    return {"enum": rng.sample([*WORDS, 1, -2.5, None, True], rng.randint(1, 5))}


def array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    items = random_schema(rng, depth - 1)
    return {
        "type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 2)
    }  # fmt: skip


def object_(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(WORDS, rng.randint(0, 4))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def damaged(schema: Schema, rng: random.Random) -> str:
    """Return the text of a schema with a few characters cut, repeated or replaced."""
    text = json.dumps(schema)
    for _ in range(rng.randint(1, 3)):
        place, length = rng.randrange(len(text) + 1), rng.randint(0, 8)
        piece = rng.choice(["", text[place : place + length] * 2, rng.choice('{}[]",:0-9\\ $ref')])
        text = text[:place] + piece + text[place + length :]
    return text[: rng.randint(1, len(text))] if text and rng.random() < 0.3 else text
