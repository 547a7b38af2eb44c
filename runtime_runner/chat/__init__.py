"""Conversations with an artifact, from Python and in a terminal."""

from eagle_aot.runtime_runner.chat.conversation import Conversation

__all__ = ["Conversation"]
