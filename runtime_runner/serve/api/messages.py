"""Messages in the bodies of requests."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from eagle_aot.common.errors import PromptError
from eagle_aot.common.prompts import Message, MessagePart
from eagle_aot.runtime_runner.serve.api.tools import CalledTools

MAX_MESSAGES = 1024
MAX_CHARACTERS = 4_000_000
MAX_URL_CHARACTERS = 48 << 20
"""The largest file that is read, in base64."""
RequestText = Annotated[str, Meta(max_length=MAX_CHARACTERS)]
ShortText = Annotated[str, Meta(max_length=1024)]


class Body(msgspec.Struct, kw_only=True):
    """A JSON object in a request."""


class TextPart(Body, tag_field="type", tag="text"):
    """A text in a message that has parts."""

    text: RequestText

    def part(self) -> MessagePart:
        """Return the part of a prompt."""
        return {"type": "text", "text": self.text}


class DataUrl(Body):
    """An image in a `data:` URL. With `low` or `high` detail it takes as few or as many tokens as
    the artifact's images may."""

    url: Annotated[str, Meta(max_length=MAX_URL_CHARACTERS)]
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Body, tag_field="type", tag="image_url"):
    """An image in a message that has parts."""

    image_url: DataUrl

    def part(self) -> MessagePart:
        """Return the part of a prompt."""
        return {
            "type": "image_url",
            "image_url": {"url": self.image_url.url},
            "detail": self.image_url.detail or "auto",
        }


MessageContent = RequestText | Annotated[list[TextPart | ImagePart], Meta(max_length=MAX_MESSAGES)]


class ChatMessage(Body):
    """A turn of a conversation. `developer` is OpenAI's newer name for the system.

    Fields that can only be null would be a part of the conversation. An assistant's turn has
    content, calls of tools, or at least the `reasoning_content` that precedes them. A tool's turn
    is the output of the call with the id `tool_call_id`.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: MessageContent | None = None
    tool_calls: CalledTools | None = None
    tool_call_id: ShortText | None = None
    reasoning_content: RequestText | None = None
    audio: None = None
    function_call: None = None

    def message(self) -> Message:
        """Return the message of a prompt, with parts only where there are images. Raises
        PromptError."""
        role = "system" if self.role == "developer" else self.role
        message: Message = {"role": role, "content": self._content()}
        if role == "assistant" and self.tool_calls:
            message["tool_calls"] = [call.call() for call in self.tool_calls]
        if role == "assistant" and self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if role == "tool" and self.tool_call_id:
            message["tool_call_id"] = self.tool_call_id
        return message

    def _content(self) -> str | list[MessagePart]:
        parts = self.content
        if parts is None:
            if not (self.tool_calls or self.reasoning_content):
                raise PromptError(f"messages: a turn of the {self.role} has no content")
            return ""
        if isinstance(parts, str):
            return parts
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        if len(texts) == len(parts):
            return "".join(texts)
        return [part.part() for part in parts]
