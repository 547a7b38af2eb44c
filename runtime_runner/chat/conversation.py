"""A conversation whose earlier turns stay in the cache."""

from collections.abc import Sequence
from typing import Any

from eagle_aot.common.prompts import Message, behind_images, user
from eagle_aot.runtime_runner.images.reader import Source
from eagle_aot.runtime_runner.results.result import Result
from eagle_aot.runtime_runner.runner import Runner

MAX_NEW_TOKENS = 1024
"""Of an answer: an end for models that find none."""

LEAST_ROOM = 4
"""Part of the context that an answer must find free, unless it is to be shorter."""
LEFT = 2
"""Part of the context that a conversation may fill which has just forgotten turns: forgetting a
little at every turn would mean running all the others again each time."""


class Conversation:
    """Turns of a user, each answered in view of all before it.

    An answer has the tokens that `Runner.generate` gives for all `messages` at once; what the cache
    holds of them is not run again. Once the context has no room for another answer the oldest turns
    are forgotten, the system's text never.
    """

    def __init__(self, runner: Runner, system: str | None = None) -> None:
        """Raises ArtifactError where there is no tokenizer, PromptError where its chat template
        takes no conversation, or no `system`."""
        runner.encode([user("?")], system)
        self.runner = runner
        self.forgotten = 0
        """Turns of the user, with their answers, in all."""
        self._start: list[Message] = []
        if system is not None:
            self._start.append({"role": "system", "content": system})
        self.messages = [*self._start]

    def reset(self) -> None:
        """Begin again behind the system's text."""
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
        """Answer a turn, whose text stands behind its `images`; `options` are those of
        `Runner.generate`.

        An answer that was cancelled or cut short is part of the conversation as far as it came.
        Raises what `generate` raises, and then the conversation is as before: PromptError for a
        turn that does not fit the context even alone.
        """
        read = [self.runner.reader.picture(image, image_tokens) for image in images]
        turn = behind_images(read, text) if read else user(text)
        messages, forgotten = self._fitting([*self.messages, turn], max_new_tokens)
        result = self.runner.generate(messages, max_new_tokens, reuse=True, **options)
        self.messages = [*messages, {"role": "assistant", "content": result.text or ""}]
        self.forgotten += forgotten
        return result

    def _fitting(self, messages: list[Message], max_new_tokens: int) -> tuple[list[Message], int]:
        """Those that are not forgotten, and how many turns are."""
        context = self.runner.constants.max_seq_len
        room = min(max_new_tokens, context // LEAST_ROOM)
        if self._length(messages) + room <= context:
            return messages, 0
        turns = turns_of(messages[len(self._start) :])
        for forgotten in range(1, len(turns)):
            messages = [*self._start, *(one for turn in turns[forgotten:] for one in turn)]
            if self._length(messages) <= context // LEFT:
                return messages, forgotten
        return messages, len(turns) - 1

    def _length(self, messages: Sequence[Message]) -> int:
        return len(self.runner.encode(messages))


def turns_of(messages: Sequence[Message]) -> list[list[Message]]:
    """Each turn of the user with its answer."""
    turns: list[list[Message]] = []
    for message in messages:
        if message["role"] == "user":
            turns.append([])
        turns[-1].append(message)
    return turns
