"""Conversations made of templates and word lists (`kinds.toml`), the same ones each time."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from eagle_aot.common.errors import SettingError

Message = dict[str, str]
Conversation = list[Message]

DATA = Path(__file__).with_name("kinds.toml")
NAMED = re.compile(r"\{([a-z0-9]+)(!?)\}")
ROLES = ("user", "assistant")
MAX_REPEATED = 1000
"""Repeated conversations in a row after which the templates count as exhausted."""


@cache
def data() -> dict[str, Any]:
    """Return the templates, lists and ranges of `kinds.toml`."""
    return tomllib.loads(DATA.read_text("utf-8"))


def made_conversations(count: int, seed: int) -> Iterator[Conversation]:
    """Yield `count` distinct conversations that end with a user's turn.

    A longer run begins with those of a shorter one. Raises SettingError if the templates do not
    give so many.
    """
    rng, kinds = Random(seed), list(data()["kinds"].values())
    weights = [kind["weight"] for kind in kinds]
    seen: set[int] = set()
    repeated = 0
    while len(seen) < count:
        template = rng.choice(rng.choices(kinds, weights)[0]["templates"])
        conversation = _conversation(template, rng)
        digest = hash(tuple(message["content"] for message in conversation))
        repeated = repeated + 1 if digest in seen else 0
        if repeated > MAX_REPEATED:
            raise SettingError(f"--prompts {count}: the templates give {len(seen)} distinct ones")
        if not repeated:
            seen.add(digest)
            yield conversation


def _conversation(template: str | list[str], rng: Random) -> Conversation:
    drawn: dict[str, str] = {}
    turns = [template] if isinstance(template, str) else template
    contents = [_fill(turn, rng, drawn) for turn in turns]
    messages = [
        {"role": ROLES[i % 2], "content": content[:1].upper() + content[1:]}
        for i, content in enumerate(contents)
    ]
    system = data()["system"]
    if rng.random() < system["share"]:
        content = _fill(rng.choice(system["templates"]), rng, drawn)
        messages.insert(0, {"role": "system", "content": content})
    return messages


def _fill(template: str, rng: Random, drawn: dict[str, str]) -> str:
    """Fill each {name} with a word; `{{` and `}}` become braces."""
    return _expand(template, rng, drawn).replace("{{", "{").replace("}}", "}")


def _expand(template: str, rng: Random, drawn: dict[str, str]) -> str:
    def word(match: re.Match[str]) -> str:
        name, again = match.groups()
        if again:
            return drawn[name]
        numbers = data()["numbers"].get(name)
        if numbers is not None:
            drawn[name] = str(rng.randint(*numbers))
        else:
            drawn[name] = _expand(rng.choice(data()["lists"][name]), rng, drawn)
        return drawn[name]

    return NAMED.sub(word, template)
