"""Prompts from the command line, a file, or one JSON object per line."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Required, TypedDict

import msgspec

from eagle_aot.common.errors import PromptError, reason
from eagle_aot.common.files import STDIN, read_small
from eagle_aot.common.structs import convert

if TYPE_CHECKING:
    from typing_extensions import TypeIs

MAX_BYTES = 1 << 30  # of a file of prompts
EXPECTED = 'expected {"prompt": "..."}, {"token_ids": [...]} or {"messages": [...]}'


INVALID = (msgspec.ValidationError, UnicodeEncodeError)
"""Errors of msgspec for a wrong type, and for half a surrogate pair in a name."""


class ImageUrl(TypedDict):
    """An image as OpenAI's API has it: a `data:` URL that contains it."""

    url: str


class MessagePart(TypedDict, total=False):
    """A part of a message: a text, or an image, which is a file's name, or in Python anything that
    `Runner.generate` takes for an image. With `low` or `high` detail it takes as few or as many
    tokens as images of the artifact may."""

    type: Required[Literal["text", "image", "image_url"]]
    text: str
    image: Any
    image_url: ImageUrl
    detail: Literal["auto", "low", "high"]


class FunctionCall(TypedDict):
    """The name of a function, and the arguments by name, or a text that is no JSON object: a call
    may have been cut off."""

    name: str
    arguments: dict[str, Any] | str


class MessageCall(TypedDict):
    """A tool call of an assistant's turn, in OpenAI's form with the arguments read."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict):
    """A turn of a conversation, or the system's text before it. A tool's turn has the output of the
    call with the id `tool_call_id`. `reasoning_content` precedes an assistant's `content`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[MessagePart]
    tool_calls: NotRequired[list[MessageCall]]
    tool_call_id: NotRequired[str]
    reasoning_content: NotRequired[str]


Prompt = str | list[int] | list[Message]
"""One turn of a user, token ids, or a conversation. It ends with a user's or a tool's turn, or with
the beginning of the assistant's, which is continued; a system's text may be alone."""


class PromptLine(msgspec.Struct):
    """A line of a file of prompts, with one of these; other keys are ignored."""

    prompt: str | None = None
    images: list[str] = []
    token_ids: list[int] | None = None
    messages: list[Message] | None = None


def read_prompts(
    prompt: str | None, prompt_file: Path | None, prompts_jsonl: Path | None
) -> list[Prompt]:
    """Return the prompts of exactly one source; the file `-` is standard input.

    Raises PromptError if it cannot be read.
    """
    if prompt is not None:
        return [prompt]
    if prompt_file is not None:
        return [_read(prompt_file)]
    if prompts_jsonl is not None:
        prompts = list(parse_jsonl(_read(prompts_jsonl), name_of(prompts_jsonl)))
        if not prompts:
            raise PromptError(f"{name_of(prompts_jsonl)}: holds no prompts")
        return prompts
    return []


def parse_jsonl(text: str, location: str) -> Iterator[Prompt]:
    """Yield the prompt of each line: `{"prompt": "..."}`, which may have `"images": ["FILE"]`,
    `{"token_ids": [...]}` or `{"messages": [{"role": "user", "content": "..."}]}`. Blank lines are
    skipped.

    Raises PromptError, which names the line.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PromptError(f"{location}:{number}: not JSON ({error})") from error
        yield _prompt_of(entry, f"{location}:{number}")


def is_ids(prompt: str | Sequence[int] | Sequence[Message]) -> "TypeIs[Sequence[int]]":
    """Return whether a prompt consists of token ids."""
    return not isinstance(prompt, str) and not (prompt and isinstance(prompt[0], dict))


def check_messages(messages: object) -> list[Message]:
    """Return a conversation that ends as a `Prompt` does. Raises PromptError for anything else."""
    try:
        conversation = convert(messages, list[Message])
    except INVALID as error:
        raise PromptError(f"messages: {error}") from error
    if not conversation:
        raise PromptError("messages: there are none")
    if conversation[-1]["role"] == "system" and len(conversation) > 1:
        raise PromptError("messages: the last one must be the user's or the assistant's")
    if [message["role"] for message in conversation] == ["assistant"]:
        raise PromptError("messages: the assistant's last one must follow another one")
    if conversation[-1].get("tool_calls"):
        raise PromptError("messages: no tool's turn follows the last one, which calls tools")
    for message in conversation:
        _check_parts(message)
    return conversation


def _check_parts(message: Message) -> None:
    """Raise PromptError for a part without the field of its type, and for an image in a turn that
    is not the user's."""
    for part in message["content"] if isinstance(message["content"], list) else []:
        if part["type"] not in part:
            raise PromptError(f"messages: a part of type {part['type']} has no {part['type']}")
        if part["type"] != "text" and message["role"] != "user":
            raise PromptError(f"messages: an image in a turn of the {message['role']}")


def text_of(message: Message) -> str:
    """Return the texts of a message, one after the other."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def user(content: str | list[MessagePart]) -> Message:
    return {"role": "user", "content": content}


def with_images(images: Sequence[Any], text: str) -> Message:
    """Return a turn of the user with a text after images."""
    parts: list[MessagePart] = [{"type": "image", "image": image} for image in images]
    return user([*parts, {"type": "text", "text": text}])


def with_system(prompt: str | Sequence[Message], system: str | None) -> list[Message]:
    """Return a prompt as messages, after the system's text unless they begin with one."""
    turns = [user(prompt)] if isinstance(prompt, str) else [*prompt]
    if system is None or turns[0]["role"] == "system":
        return turns
    return [{"role": "system", "content": system}, *turns]


def name_of(path: Path) -> str:
    """Return a file's name for an error line."""
    return "standard input" if path == STDIN else str(path)


def _prompt_of(entry: object, location: str) -> Prompt:
    try:
        line = convert(entry, PromptLine)
    except INVALID as error:
        raise PromptError(f"{location}: {EXPECTED} ({error})") from error
    prompts: list[Prompt] = [p for p in (line.prompt, line.token_ids) if p is not None]
    if line.images and line.prompt is None:
        raise PromptError(f"{location}: images go with a prompt: messages have theirs as parts")
    if line.images:
        prompts = [[with_images(line.images, line.prompt or "")]]
    if line.messages is not None:
        prompts.append(_messages_of(line.messages, location))
    if len(prompts) != 1:
        raise PromptError(f"{location}: {EXPECTED}")
    return prompts[0]


def _messages_of(messages: list[Message], location: str) -> list[Message]:
    try:
        return check_messages(messages)
    except PromptError as error:
        raise PromptError(f"{location}: {error}") from error


def _read(path: Path) -> str:
    try:
        return read_small(path, MAX_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{name_of(path)}: cannot be read ({reason(error)})") from error
