"""Prompts from the command line, a file, or one JSON object per line."""

import json
from collections.abc import Iterator
from pathlib import Path

from eagle_aot.common.errors import PromptError

Prompt = str | list[int]


def read_prompts(
    prompt: str | None, prompt_file: Path | None, prompts_jsonl: Path | None
) -> list[Prompt]:
    """The prompts of exactly one source. Raises PromptError when it cannot be read."""
    if prompt is not None:
        return [prompt]
    if prompt_file is not None:
        return [_read(prompt_file)]
    if prompts_jsonl is not None:
        found = list(parse_jsonl(_read(prompts_jsonl), str(prompts_jsonl)))
        if not found:
            raise PromptError(f"{prompts_jsonl}: holds no prompts")
        return found
    return []


def parse_jsonl(text: str, where: str) -> Iterator[Prompt]:
    """`{"prompt": "..."}` or `{"token_ids": [...]}` per line; blank lines are skipped.

    Raises PromptError naming the line.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PromptError(f"{where}:{number}: not JSON ({error})") from error
        yield _prompt_of(entry, f"{where}:{number}")


def _prompt_of(entry: object, where: str) -> Prompt:
    if isinstance(entry, dict):
        text, ids = entry.get("prompt"), entry.get("token_ids")
        if isinstance(text, str) and ids is None:
            return text
        if text is None and isinstance(ids, list) and all(type(i) is int for i in ids):
            return ids
    raise PromptError(f'{where}: expected {{"prompt": "..."}} or {{"token_ids": [...]}}')


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{path}: cannot be read ({error})") from error
