"""The prompts of a conversation, with a runner that takes each word for a token."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eagle_aot.common.errors import PromptError
from eagle_aot.common.prompts import Message
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.frontend.conversation import Conversation

CONTEXT = 40


class WordRunner:
    """Answers with three words, and stores its prompts."""

    constants = SimpleNamespace(max_seq_len=CONTEXT)

    def __init__(self) -> None:
        self.prompts: list[list[Message]] = []
        self.options: list[dict[str, Any]] = []

    def encode(self, messages: Sequence[Message], system: str | None = None) -> list[int]:
        if system == "refused":
            raise PromptError("no system text")
        return [0] * sum(len(content.split()) for content in contents(messages))

    def generate(
        self, messages: list[Message], max_new_tokens: int, **options: Any
    ) -> SimpleNamespace:
        if len(self.encode(messages)) >= CONTEXT:
            raise PromptError("too long")
        self.prompts.append(messages)
        self.options.append({"max_new_tokens": max_new_tokens, **options})
        return SimpleNamespace(text=f"answer number {len(self.prompts)}")


def started(system: str | None = None) -> tuple[Conversation, WordRunner]:
    runner = WordRunner()
    return Conversation(cast(Runner, runner), system), runner


def contents(messages: Sequence[Message]) -> list[str]:
    return [str(message["content"]) for message in messages]


def test_each_turn_is_answered_in_view_of_all_before_it() -> None:
    conversation, runner = started("be brief")
    conversation.say("one", speculate=False)
    conversation.say("two", 7)
    assert contents(runner.prompts[1]) == ["be brief", "one", "answer number 1", "two"]
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert runner.options == [
        {"max_new_tokens": 1024, "reuse": True, "speculate": False},
        {"max_new_tokens": 7, "reuse": True},
    ]
    conversation.reset()
    conversation.say("three")
    assert contents(runner.prompts[2]) == ["be brief", "three"]


def test_the_oldest_turns_are_forgotten_when_the_context_is_full() -> None:
    """An answer needs a quarter of the context; then half of it is kept, with the system's text."""
    conversation, runner = started("be brief")
    for turn in range(4):
        conversation.say(f"turn {turn} has five words")  # eight with their answers
        assert conversation.forgotten == (2 if turn == 3 else 0)
    assert [len(runner.encode(messages)) for messages in runner.prompts] == [7, 15, 23, 15]
    assert contents(runner.prompts[3])[:2] == ["be brief", "turn 2 has five words"]
    assert conversation.messages[:-1] == runner.prompts[3]


def test_a_short_answer_needs_little_of_the_context() -> None:
    conversation, _ = started()
    for turn in range(4):
        conversation.say(f"turn {turn} has five words", 2)
    assert conversation.forgotten == 0


def test_a_turn_that_is_too_long_changes_nothing() -> None:
    conversation, runner = started()
    conversation.say("one")
    with pytest.raises(PromptError, match="too long"):
        conversation.say("word " * CONTEXT)
    assert contents(conversation.messages) == ["one", "answer number 1"]
    assert conversation.forgotten == 0
    conversation.say("word " * (CONTEXT - 1))
    assert len(runner.prompts[-1]) == 1 and conversation.forgotten == 1


def test_a_system_text_that_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(PromptError, match="no system text"):
        started("refused")
