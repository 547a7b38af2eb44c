"""Reads prompts as users write them, with their images, for one artifact."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

from eagle_aot.artifact import ImageInputs
from eagle_aot.common.errors import ArtifactError, PromptError, SettingError
from eagle_aot.common.prompts import Message, MessagePart, check_messages, is_ids, with_images
from eagle_aot.common.tokenizer import NO_VALUES, Tokenizer, read_tokenizer
from eagle_aot.common.tokenizer_probe import check_tokenizer
from eagle_aot.runtime_runner.images.prompt_image import (
    PromptImage,
    TokenizedPrompt,
    check_image_count,
    place_images,
)
from eagle_aot.runtime_runner.images.reader import ImageReader, Source, decode_url

AnyPrompt = str | Sequence[int] | Sequence[Message] | TokenizedPrompt


class PromptReader:
    """Turns prompts into token ids and images."""

    def __init__(
        self,
        directory: Path,
        images: ImageInputs | None,
        max_rows: int,
        context: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`directory` is the artifact's. `images` says how its prompts contain images, None for
        text alone. An image takes at most `max_rows` rows of a prompt, which has less than
        `context` tokens. `check` is called after a file was read, and raises ArtifactError where it
        may be another one than was verified."""
        self.directory, self._images, self._max_rows = directory, images, max_rows
        self._context, self.check = context, check
        self.image_reader = None if images is None else ImageReader(directory, images)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The artifact's tokenizer, read when first needed. Raises ArtifactError where there is
        none, and as `check_tokenizer` does."""
        check_tokenizer(self.directory)
        tokenizer = read_tokenizer(self.directory, self._context)
        self.check()
        return tokenizer

    def read(
        self,
        prompt: AnyPrompt,
        system: str | None = None,
        *,
        raw: bool = False,
        images: Sequence[Source] = (),
        image_tokens: int | None = None,
        template_values: Mapping[str, object] = NO_VALUES,
    ) -> TokenizedPrompt:
        """Return the token ids of a prompt, and its images with their positions.

        `images` belong to a prompt of text or ids: each stands where one of its image tokens is, or
        all in front of a text that has none. Messages contain their images themselves. An image
        takes `image_tokens` rows at most, the artifact's own number if None. The chat template gets
        `template_values`, such as `tools`, with messages. Raises PromptError for a prompt that
        cannot be read, SettingError for arguments that exclude each other, and ArtifactError for
        text where there is no tokenizer.
        """
        if isinstance(prompt, TokenizedPrompt):
            return prompt
        if is_ids(prompt):
            if system is not None:
                raise PromptError("token ids take no system text: leave it out, or give messages")
            return self._place(list(prompt), self._read_all(images, image_tokens))
        if raw and (system is not None or not isinstance(prompt, str)):
            raise SettingError("a raw prompt is text alone: leave out messages and system text")
        if not isinstance(prompt, str):
            if images:
                raise SettingError("messages contain their images themselves: leave out the others")
            return self._read_messages(prompt, system, image_tokens, template_values)
        if raw:
            return self._read_raw(prompt, self._read_all(images, image_tokens))
        if images:
            return self._read_messages([with_images(images, prompt)], system, image_tokens)
        return self._place(self.tokenizer.encode(prompt, system=system), [])  # needs no template

    def read_image(self, source: Source, image_tokens: int | None) -> PromptImage:
        """Return an image of at most `image_tokens` rows of a prompt. Raises PromptError as `read`
        does."""
        if self.image_reader is None:
            raise PromptError("this artifact reads text alone: export with --inputs text,image")
        image = self.image_reader.read(source, image_tokens)  # with settings from a file
        self.check()
        return image

    def _read_raw(self, text: str, images: Sequence[PromptImage]) -> TokenizedPrompt:
        """Read text without the chat template. Images whose positions it does not have precede
        it."""
        if images and self._image_word not in text:
            text = len(images) * self._image_word + text
        return self._place(self.tokenizer.encode(text, raw=True), images)

    def _read_messages(
        self,
        prompt: Sequence[Message],
        system: str | None,
        image_tokens: int | None,
        template_values: Mapping[str, object] = NO_VALUES,
    ) -> TokenizedPrompt:
        messages = check_messages(prompt)
        parts = image_parts(messages)
        check_image_count(len(parts))
        images = [self._read_part(part, image_tokens) for part in parts]
        encode = partial(self.tokenizer.encode, system=system, template_values=template_values)
        if not images:
            return self._place(encode([self._flatten(message) for message in messages]), [])
        messages = [self._with_positions(message) for message in messages]
        return self._place(self._encode(messages, encode, len(images)), images)

    def _read_all(self, sources: Sequence[Source], image_tokens: int | None) -> list[PromptImage]:
        check_image_count(len(sources))
        return [self.read_image(source, image_tokens) for source in sources]

    def _read_part(self, part: MessagePart, image_tokens: int | None) -> PromptImage:
        """Read the image of a message, with as many rows as its detail says.

        An `image_url` contains its image and names no file: clients of a server send those.
        """
        choices = {"low": min, "high": max}
        if self._images is not None and (choose := choices.get(part.get("detail", "auto"))):
            image_tokens = choose(self._images.rows)
        is_image = part["type"] == "image"
        source = part["image"] if is_image else decode_url(part["image_url"]["url"])
        return self.read_image(source, image_tokens)

    def _place(self, ids: Sequence[int], images: Sequence[PromptImage]) -> TokenizedPrompt:
        if self._images is None:
            return TokenizedPrompt(tuple(ids))
        return place_images(ids, images, self._images, self._max_rows)

    @cached_property
    def _image_word(self) -> str:
        """The text that stands for an image."""
        assert self._images is not None
        word = self.tokenizer.word(self._images.image_token)
        if not word:
            raise PromptError(f"{self.directory}: its tokenizer has no word for an image")
        return word

    def _with_positions(self, message: Message) -> Message:
        """Move images that precede a text to where the text has the word for an image, as vLLM
        does. Raises PromptError where the text has another number of them."""
        parts, images = parts_of(message), image_parts([message])
        if not any(self._image_word in part.get("text", "") for part in parts):
            return message
        text = parts[-1].get("text", "")
        if images != parts[:-1] or text.count(self._image_word) != len(images):
            raise PromptError(
                f"a message has the text {self._image_word}: give images as parts of the message, "
                "or that text once for each of the images in front of one text"
            )
        return with_content(message, interleave(text.split(self._image_word), images))

    def _encode(
        self, messages: Sequence[Message], encode: Callable[[list[Message]], list[int]], images: int
    ) -> list[int]:
        """Return ids with an image token for each image: by a template that takes parts, or else
        with the token's word in the text."""
        assert self._images is not None
        with suppress(ArtifactError, PromptError):  # of a template that takes no parts
            ids = encode(list(map(without_images, messages)))
            if ids.count(self._images.image_token) == images:
                return ids
        return encode([self._flatten(message) for message in messages])

    def _flatten(self, message: Message) -> Message:
        """Return a message with one text for all of its parts."""
        parts = parts_of(message)
        texts = [part["text"] if part["type"] == "text" else self._image_word for part in parts]
        return with_content(message, "".join(texts))


def without_images(message: Message) -> Message:
    """Return a message for a template, which sees that there are images, but not the images."""
    content = message["content"]
    if isinstance(content, str):
        return message
    parts: list[MessagePart] = [
        {"type": "text", "text": part["text"]} if part["type"] == "text" else {"type": "image"}
        for part in content
    ]
    return with_content(message, parts)


def with_content(message: Message, content: str | list[MessagePart]) -> Message:
    """Return a message with another content."""
    changed = message.copy()
    changed["content"] = content
    return changed


def interleave(texts: Sequence[str], images: Sequence[MessagePart]) -> list[MessagePart]:
    """Return parts: the texts, without empty ones, with an image between each two of them."""
    parts = list[MessagePart]()
    for i, text in enumerate(texts):
        parts += images[i - 1 : i] if i else []
        parts += [{"type": "text", "text": text}] if text else []
    return parts


def parts_of(message: Message) -> list[MessagePart]:
    """Return the content of a message as parts."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def image_parts(messages: Sequence[Message]) -> list[MessagePart]:
    """Return the parts of messages that are images."""
    parts = (part for message in messages for part in parts_of(message))
    return [part for part in parts if part["type"] != "text"]
