"""Prompts from the command line, a file, or one JSON object per line."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

import msgspec

from eagle_aot.common.errors import PromptError, reason

if TYPE_CHECKING:
    from typing_extensions import TypeIs

STDIN = Path("-")
EXPECTED = 'expected {"prompt": "..."}, {"token_ids": [...]} or {"messages": [...]}'


NOT_SUCH = (msgspec.ValidationError, UnicodeEncodeError)
"""What msgspec raises for another type, and for half a character where it expects a name."""


class ImageUrl(TypedDict):
    """As OpenAI's API names a picture; the URL holds it."""

    url: str


class Part(TypedDict, total=False):
    """Of a message: text, or a picture: an `image` is a file's name, or in Python whatever
    `Runner.generate` takes for one; with `low` or `high` detail it takes as few or as many tokens
    as pictures of the artifact may."""

    type: Required[Literal["text", "image", "image_url"]]
    text: str
    image: Any
    image_url: ImageUrl
    detail: Literal["auto", "low", "high"]


class Message(TypedDict):
    """A turn of a conversation, or the system's instructions in front of it."""

    role: Literal["system", "user", "assistant"]
    content: str | list[Part]


Prompt = str | list[int] | list[Message]
"""A user's one turn, token ids, or a conversation that ends with a user's turn."""


class Line(msgspec.Struct):
    """Of a file of prompts: one of these, and what is no prompt's."""

    prompt: str | None = None
    images: list[str] = []
    token_ids: list[int] | None = None
    messages: list[Message] | None = None


def read_prompts(
    prompt: str | None, prompt_file: Path | None, prompts_jsonl: Path | None
) -> list[Prompt]:
    """The prompts of exactly one source; a file that is `-` is standard input.

    Raises PromptError when it cannot be read.
    """
    if prompt is not None:
        return [prompt]
    if prompt_file is not None:
        return [_read(prompt_file)]
    if prompts_jsonl is not None:
        found = list(parse_jsonl(_read(prompts_jsonl), name_of(prompts_jsonl)))
        if not found:
            raise PromptError(f"{name_of(prompts_jsonl)}: holds no prompts")
        return found
    return []


def parse_jsonl(text: str, where: str) -> Iterator[Prompt]:
    """`{"prompt": "..."}`, with `"images": ["FILE"]` or without, `{"token_ids": [...]}` or
    `{"messages": [{"role": "user", "content": "..."}]}` per line; blank lines are skipped.

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


def is_ids(prompt: str | Sequence[int] | Sequence[Message]) -> "TypeIs[Sequence[int]]":
    """Whether a prompt needs no tokenizer."""
    return not isinstance(prompt, str) and not (prompt and isinstance(prompt[0], dict))


def check_messages(messages: object) -> list[Message]:
    """A conversation that ends with a user's turn. Raises PromptError for anything else."""
    try:
        found = msgspec.convert(messages, list[Message])
    except NOT_SUCH as error:
        raise PromptError(f"messages: {error}") from error
    if not found or found[-1]["role"] != "user":
        raise PromptError("messages: the last one must be the user's")
    for message in found:
        _check_parts(message)
    return found


def _check_parts(message: Message) -> None:
    """Raise PromptError for a part that lacks what its type says, and pictures of the system."""
    for part in message["content"] if isinstance(message["content"], list) else []:
        if part["type"] not in part:
            raise PromptError(f"messages: a part of type {part['type']} has no {part['type']}")
        if part["type"] != "text" and message["role"] != "user":
            raise PromptError(f"messages: a picture in a turn of the {message['role']}")


def user(content: str | list[Part]) -> Message:
    """The user's turn."""
    return {"role": "user", "content": content}


def with_images(images: Sequence[Any], text: str) -> Message:
    """The user's turn of text behind pictures."""
    parts: list[Part] = [{"type": "image", "image": one} for one in images]
    return user([*parts, {"type": "text", "text": text}])


def with_system(prompt: str | Sequence[Message], system: str | None) -> list[Message]:
    """A prompt as messages, behind the system's text; messages that begin with one keep theirs."""
    turns = [user(prompt)] if isinstance(prompt, str) else [*prompt]
    if system is None or turns[0]["role"] == "system":
        return turns
    return [{"role": "system", "content": system}, *turns]


def name_of(path: Path) -> str:
    """For a message."""
    return "standard input" if path == STDIN else str(path)


def _prompt_of(entry: object, where: str) -> Prompt:
    try:
        line = msgspec.convert(entry, Line)
    except NOT_SUCH as error:
        raise PromptError(f"{where}: {EXPECTED} ({error})") from error
    given: list[Prompt] = [one for one in (line.prompt, line.token_ids) if one is not None]
    if line.images and line.prompt is None:
        raise PromptError(f"{where}: images go with a prompt: messages hold theirs as parts")
    if line.images:
        given = [[with_images(line.images, line.prompt or "")]]
    if line.messages is not None:
        given.append(_messages_of(line.messages, where))
    if len(given) != 1:
        raise PromptError(f"{where}: {EXPECTED}")
    return given[0]


def _messages_of(messages: list[Message], where: str) -> list[Message]:
    try:
        return check_messages(messages)
    except PromptError as error:
        raise PromptError(f"{where}: {error}") from error


def _read(path: Path) -> str:
    try:
        content = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{name_of(path)}: cannot be read ({reason(error)})") from error
