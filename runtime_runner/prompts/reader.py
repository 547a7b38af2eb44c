"""Prompts as users write them, with their pictures, read for one artifact."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

from eagle_aot.artifact import ImageInputs
from eagle_aot.common.errors import ArtifactError, PromptError, SettingError
from eagle_aot.common.prompts import Message, Part, check_messages, is_ids, user
from eagle_aot.common.tokenizer import Tokenizer, read_tokenizer
from eagle_aot.runtime_runner.images.picture import Picture, PlacedPrompt
from eagle_aot.runtime_runner.images.placing import check_count, place
from eagle_aot.runtime_runner.images.reader import PictureReader, Source
from eagle_aot.runtime_runner.images.urls import content_of

AnyPrompt = str | Sequence[int] | Sequence[Message] | PlacedPrompt


class PromptReader:
    """Of the artifact in `directory`. Its program takes `images` where that is not None, of up to
    `longest` rows each."""

    def __init__(self, directory: Path, images: ImageInputs | None, longest: int) -> None:
        self._directory, self._images, self._longest = directory, images, longest
        self.pictures = None if images is None else PictureReader(directory, images)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Loaded when text is first needed. Raises ArtifactError when there is none."""
        return read_tokenizer(self._directory)

    def read(
        self,
        prompt: AnyPrompt,
        system: str | None = None,
        *,
        raw: bool = False,
        images: Sequence[Source] = (),
        rows: int | None = None,
    ) -> PlacedPrompt:
        """Token ids, and pictures where they stand.

        `images` belong to a prompt of text or ids: each where one of its image tokens is, or all
        in front of a text that has none; messages hold theirs themselves. Of each picture there
        are `rows` at most, the artifact's own number if None. Raises PromptError for a prompt
        that cannot be read, SettingError for what says nothing together, ArtifactError for text
        where there is no tokenizer.
        """
        if isinstance(prompt, PlacedPrompt):
            return prompt
        if images and not is_ids(prompt) and not isinstance(prompt, str):
            raise SettingError("messages hold their pictures themselves: leave out the others")
        if is_ids(prompt):
            if system is not None:
                raise PromptError("token ids take no system text: leave it out, or give messages")
            return self._placed(list(prompt), self._all(images, rows))
        if raw and (system is not None or not isinstance(prompt, str)):
            raise SettingError("a raw prompt is text alone: leave out messages and system text")
        if raw and isinstance(prompt, str):
            read = self._all(images, rows)
            spread = self._spread(prompt, read)
            text = "".join(one["text"] if one["type"] == "text" else self._word for one in spread)
            return self._placed(self.tokenizer.encode(text, raw), read)
        return self._read_turns(prompt, system, images, rows)

    def _read_turns(
        self, prompt: Any, system: str | None, images: Sequence[Source], rows: int | None
    ) -> PlacedPrompt:
        """Text as a user's turn, or messages."""
        if isinstance(prompt, str):
            read = self._all(images, rows)
            if not read:
                return self._placed(self.tokenizer.encode(prompt, system=system), [])
            turn = user(self._spread(prompt, read))
            return self._placed(self._encoded([turn], system, len(read)), read)
        messages = check_messages(prompt)
        parts = list(of(messages))
        check_count(len(parts))
        found = [self._picture_of(part, rows) for part in parts]
        if not found:
            flat = [self._flat(message) for message in messages]
            return self._placed(self.tokenizer.encode(flat, system=system), [])
        messages = [self._with_places(message) for message in messages]
        return self._placed(self._encoded(messages, system, len(found)), found)

    def picture(self, source: Source, rows: int | None) -> Picture:
        """One of at most so many rows of a prompt. Raises PromptError as `read` does."""
        if self.pictures is None:
            raise PromptError("this artifact reads text alone: export with --inputs text,image")
        return self.pictures.read(source, rows)

    def _all(self, sources: Sequence[Source], rows: int | None) -> list[Picture]:
        check_count(len(sources))
        return [self.picture(source, rows) for source in sources]

    def _picture_of(self, part: Part, rows: int | None) -> Picture:
        """That of a message, with as much detail as it says."""
        choices = {"low": min, "high": max}
        if self._images is not None and (choose := choices.get(part.get("detail", "auto"))):
            rows = choose(self._images.rows)
        return self.picture(source_of(part), rows)

    def _placed(self, ids: Sequence[int], pictures: Sequence[Picture]) -> PlacedPrompt:
        if self._images is None:
            return PlacedPrompt(tuple(ids))
        return place(ids, pictures, self._images, self._longest)

    @cached_property
    def _word(self) -> str:
        """What stands for a picture in text."""
        assert self._images is not None
        word = self.tokenizer.word(self._images.image_token)
        if not isinstance(word, str) or not word:
            raise PromptError(f"{self._directory}: its tokenizer has no word for a picture")
        return word

    def _spread(self, text: str, pictures: Sequence[Picture]) -> list[Part]:
        """A text as parts, of which those without text are pictures."""
        if not pictures:
            return [{"type": "text", "text": text}]
        pieces = text.split(self._word)
        if len(pieces) == 1:
            pieces = [*[""] * len(pictures), text]
        return between(pieces, repeat({"type": "image", "text": ""}))

    def _with_places(self, message: Message) -> Message:
        """With the pictures that stand in front of a text where it says that they are, as vLLM has
        it. Raises PromptError where text says so of another number of them."""
        if not any(self._word in part["text"] for part in of([message], "text")):
            return message
        images, content = [*of([message])], message["content"]
        text = content[-1].get("text", "") if isinstance(content, list) else ""
        if images != content[:-1] or text.count(self._word) != len(images):
            raise PromptError(
                f"a message says {self._word} itself: pictures are parts of it, or it says so of "
                "each of those in front of one text"
            )
        return {"role": message["role"], "content": between(text.split(self._word), images)}

    def _encoded(self, messages: Sequence[Message], system: str | None, pictures: int) -> list[int]:
        """Ids with an image token for each picture: by a template that knows parts, or else with
        the token's word among the text."""
        assert self._images is not None
        plain = [_for_template(message) for message in messages]
        with suppress(ArtifactError):  # of a template that takes no parts
            ids = self.tokenizer.encode(plain, system=system)
            if ids.count(self._images.image_token) == pictures:
                return ids
        return self.tokenizer.encode([self._flat(one) for one in messages], system=system)

    def _flat(self, message: Message) -> Message:
        """With a text for all of its parts."""
        content = message["content"]
        if isinstance(content, str):
            return message
        texts = [part["text"] if part["type"] == "text" else self._word for part in content]
        return {"role": message["role"], "content": "".join(texts)}


def _for_template(message: Message) -> Message:
    """With no more of its pictures than that they are there."""
    content = message["content"]
    if isinstance(content, str):
        return message
    parts: list[Part] = [
        {"type": "text", "text": part["text"]} if part["type"] == "text" else {"type": "image"}
        for part in content
    ]
    return {"role": message["role"], "content": parts}


def between(texts: Sequence[str], pictures: Iterable[Part]) -> list[Part]:
    """Parts: a picture between each two of the texts, of which empty ones are none."""
    parts, following = list[Part](), iter(pictures)
    for i, text in enumerate(texts):
        if i:
            parts.append(next(following))
        if text:
            parts.append({"type": "text", "text": text})
    return parts


def of(messages: Sequence[Message], *kinds: str) -> Iterator[Part]:
    """All parts of messages that are of such a kind, or else pictures."""
    for message in messages:
        if isinstance(message["content"], str):
            if "text" in kinds:
                yield {"type": "text", "text": message["content"]}
            continue
        for part in message["content"]:
            if part["type"] in (kinds or ("image", "image_url")):
                yield part


def source_of(part: Part) -> Source:
    """What a part of a message names as its picture: an `image_url` holds it, and no file's name
    is looked at, since clients of a server send those."""
    return part["image"] if part["type"] == "image" else content_of(part["image_url"]["url"])
