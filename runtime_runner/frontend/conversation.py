"""A conversation whose earlier turns stay in the cache."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eagle_aot.common.prompts import Message, user, with_images
from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.images.reader import Source

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.runner import Runner

MAX_NEW_TOKENS = 1024
"""The limit of an answer, for models that do not end answers themselves."""
RESERVED = 4
"""A quarter of the context stays free for an answer, or less if the answer is limited to less."""
FULL = 2
"""Half of the context may be full after turns were forgotten. Forgetting a little at every turn
would run all other turns again each time."""


class Conversation:
    """Turns of a user, each answered in view of all turns before it.

    An answer has the tokens that `Runner.generate` gives for all `messages` at once; rows that the
    cache holds are not run again. When the context has no room for another answer, the oldest turns
    are forgotten, but never the system's text.
    """

    def __init__(self, runner: "Runner", system: str | None = None) -> None:
        """Raises ArtifactError where there is no tokenizer, and PromptError where its chat template
        takes no conversation, or no `system`."""
        runner.encode([user("?")], system)
        self.runner = runner
        self.forgotten = 0
        """The number of turns of the user that were forgotten, with their answers."""
        self._start: list[Message] = []
        if system is not None:
            self._start.append({"role": "system", "content": system})
        self.messages = [*self._start]

    def reset(self) -> None:
        """Forget everything but the system's text."""
        self.messages = [*self._start]
        self.forgotten = 0

    def say(
        self,
        text: str,
        max_new_tokens: int = MAX_NEW_TOKENS,
        *,
        images: Sequence[Source] = (),
        image_tokens: int | None = None,
        **options: Any,
    ) -> Result:
        """Answer a turn, whose text follows its `images`; `options` are those of `Runner.generate`.

        An answer that was cancelled or cut short becomes part of the conversation as it is. Raises
        what `generate` raises, and leaves the conversation as it was: PromptError for a turn that
        does not fit into the context even alone.
        """
        opened = [self.runner.reader.read_image(image, image_tokens) for image in images]
        turn = with_images(opened, text) if opened else user(text)
        messages, forgotten = self._fit([*self.messages, turn], max_new_tokens)
        result = self.runner.generate(messages, max_new_tokens, reuse=True, **options)
        self.messages = [*messages, {"role": "assistant", "content": result.text or ""}]
        self.forgotten += forgotten
        return result

    def _fit(self, messages: list[Message], max_new_tokens: int) -> tuple[list[Message], int]:
        """Return the messages that are not forgotten, and how many turns are."""
        context = self.runner.constants.max_seq_len
        reserved = min(max_new_tokens, context // RESERVED)
        if self._length(messages) + reserved <= context:
            return messages, 0
        turns = turns_of(messages[len(self._start) :])
        for forgotten in range(1, len(turns)):
            remaining = (message for turn in turns[forgotten:] for message in turn)
            messages = [*self._start, *remaining]
            if self._length(messages) <= context // FULL:
                return messages, forgotten
        return messages, len(turns) - 1

    def _length(self, messages: Sequence[Message]) -> int:
        return len(self.runner.encode(messages))


def turns_of(messages: Sequence[Message]) -> list[list[Message]]:
    """Return each turn of the user with its answer."""
    turns: list[list[Message]] = []
    for message in messages:
        if message["role"] == "user":
            turns.append([])
        turns[-1].append(message)
    return turns
