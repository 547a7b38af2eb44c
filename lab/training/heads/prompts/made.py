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
IN_A_ROW = 1000
"""Repeated conversations after which there are no more to be had."""


@cache
def data() -> dict[str, Any]:
    """What `kinds.toml` holds."""
    return tomllib.loads(DATA.read_text("utf-8"))


def made_conversations(count: int, seed: int) -> Iterator[Conversation]:
    """`count` distinct ones that end with a user's turn; a longer run begins as a shorter one.

    Raises SettingError when the templates do not give so many.
    """
    rng, kinds = Random(seed), list(data()["kinds"].values())
    weights = [kind["weight"] for kind in kinds]
    seen: set[int] = set()
    repeated = 0
    while len(seen) < count:
        template = rng.choice(rng.choices(kinds, weights)[0]["templates"])
        conversation = _conversation(template, rng)
        known = hash(tuple(message["content"] for message in conversation))
        repeated = repeated + 1 if known in seen else 0
        if repeated > IN_A_ROW:
            raise SettingError(f"--prompts {count}: the templates give {len(seen)} distinct ones")
        if not repeated:
            seen.add(known)
            yield conversation


def _conversation(template: str | list[str], rng: Random) -> Conversation:
    drawn: dict[str, str] = {}
    turns = [template] if isinstance(template, str) else template
    contents = [_filled(turn, rng, drawn) for turn in turns]
    messages = [
        {"role": ROLES[i % 2], "content": content[:1].upper() + content[1:]}
        for i, content in enumerate(contents)
    ]
    system = data()["system"]
    if rng.random() < system["share"]:
        content = _filled(rng.choice(system["templates"]), rng, drawn)
        messages.insert(0, {"role": "system", "content": content})
    return messages


def _filled(template: str, rng: Random, drawn: dict[str, str]) -> str:
    """With a word for every name in braces; doubled braces stand for themselves."""
    return _expanded(template, rng, drawn).replace("{{", "{").replace("}}", "}")


def _expanded(template: str, rng: Random, drawn: dict[str, str]) -> str:
    def word(match: re.Match[str]) -> str:
        name, again = match.groups()
        if again:
            return drawn[name]
        numbers = data()["numbers"].get(name)
        if numbers is not None:
            drawn[name] = str(rng.randint(*numbers))
        else:
            drawn[name] = _expanded(rng.choice(data()["lists"][name]), rng, drawn)
        return drawn[name]

    return NAMED.sub(word, template)
