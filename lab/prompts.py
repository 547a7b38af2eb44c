"""Prompts of a file, by kind, or a few of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from eagle_aot.common.errors import PromptError
from eagle_aot.common.prompts import Prompt, read_prompts

T = TypeVar("T")
ALL = "all"
"""The name of all kinds together."""


def kinds_and_prompts(path: Path, unnamed: str) -> list[tuple[str, Prompt]]:
    """Return the `kind` that each line names, `unnamed` where it names none, and its prompt.

    Raises PromptError for a file without prompts, and for a kind that is no name.
    """
    prompts = read_prompts(None, None, path)
    lines = [line for line in path.read_text("utf-8-sig").split("\n") if line.strip()]
    kinds = [json.loads(line).get("kind", unnamed) for line in lines]
    for kind in kinds:
        if not isinstance(kind, str) or kind == ALL:
            raise PromptError(f"{path}: kind {kind!r}: expected a name other than {ALL!r}")
    return list(zip(kinds, prompts, strict=True))


def spread(items: Sequence[T], count: int) -> Sequence[T]:
    """Return `count` items at equal distances, or all where there are fewer."""
    return items[:: max(len(items) // count, 1)][:count]
