"""What a conversation asks its runner, which here counts words for tokens."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eagle_aot.common.errors import PromptError
from eagle_aot.common.prompts import Message
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.frontend.conversation import Conversation

CONTEXT = 40


class Counting:
    """Answers with three words, and keeps what it was asked."""

    constants = SimpleNamespace(max_seq_len=CONTEXT)

    def __init__(self) -> None:
        self.asked: list[list[Message]] = []
        self.options: list[dict[str, Any]] = []

    def encode(self, messages: Sequence[Message], system: str | None = None) -> list[int]:
        if system == "refused":
            raise PromptError("no system text")
        return [0] * sum(len(message["content"].split()) for message in messages)

    def generate(
        self, messages: list[Message], max_new_tokens: int, **options: Any
    ) -> SimpleNamespace:
        if len(self.encode(messages)) >= CONTEXT:
            raise PromptError("too long")
        self.asked.append(messages)
        self.options.append({"max_new_tokens": max_new_tokens, **options})
        return SimpleNamespace(text=f"answer number {len(self.asked)}")


def started(system: str | None = None) -> tuple[Conversation, Counting]:
    runner = Counting()
    return Conversation(cast(Runner, runner), system), runner


def contents(messages: Sequence[Message]) -> list[str]:
    return [message["content"] for message in messages]


def test_each_turn_is_asked_in_view_of_all_before_it() -> None:
    conversation, runner = started("be brief")
    conversation.say("one", speculate=False)
    conversation.say("two", 7)
    assert contents(runner.asked[1]) == ["be brief", "one", "answer number 1", "two"]
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert runner.options == [
        {"max_new_tokens": 1024, "reuse": True, "speculate": False},
        {"max_new_tokens": 7, "reuse": True},
    ]
    conversation.reset()
    conversation.say("three")
    assert contents(runner.asked[2]) == ["be brief", "three"]


def test_the_oldest_turns_are_forgotten_once_an_answer_has_no_room() -> None:
    """A quarter of the context; down to half of it, and never what the system says."""
    conversation, runner = started("be brief")
    for turn in range(4):
        conversation.say(f"turn {turn} has five words")  # eight with their answers
        assert conversation.forgotten == (2 if turn == 3 else 0)
    assert [len(runner.encode(messages)) for messages in runner.asked] == [7, 15, 23, 15]
    assert contents(runner.asked[3])[:2] == ["be brief", "turn 2 has five words"]
    assert conversation.messages[:-1] == runner.asked[3]


def test_a_short_answer_needs_little_room() -> None:
    conversation, _ = started()
    for turn in range(4):
        conversation.say(f"turn {turn} has five words", 2)
    assert conversation.forgotten == 0


def test_a_long_turn_stands_alone_and_one_too_long_changes_nothing() -> None:
    conversation, runner = started()
    conversation.say("one")
    with pytest.raises(PromptError, match="too long"):
        conversation.say("word " * CONTEXT)
    assert contents(conversation.messages) == ["one", "answer number 1"]
    assert conversation.forgotten == 0
    conversation.say("word " * (CONTEXT - 1))
    assert len(runner.asked[-1]) == 1 and conversation.forgotten == 1


def test_what_the_system_cannot_say_is_refused_at_once() -> None:
    with pytest.raises(PromptError, match="no system text"):
        started("refused")
