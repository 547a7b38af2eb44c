"""Whose turn it is: a chunk of which prompt, or a round."""

from collections.abc import Sequence

from eagle_aot.runtime_runner.engine.running_request import RunningRequest


class PromptShare:
    """How much of the time prompts may take from texts that run.

    An account in seconds: rounds earn for prompts, chunks spend. The first chunk is on credit, so
    that a prompt which is one chunk starts at once.
    """

    def __init__(self, share: float) -> None:
        """`share` is between 0 and 1; with a half, a text beside prompts takes twice its time."""
        self._earned_by_second = share / (1 - share)
        self._account = 0.0

    @property
    def due(self) -> bool:
        """Whether the next step should be a chunk."""
        return self._account >= 0

    def add_chunk(self, seconds: float) -> None:
        """Beside running texts."""
        self._account -= seconds

    def add_round(self, seconds: float) -> None:
        """Beside waiting prompts."""
        self._account += seconds * self._earned_by_second

    def reset(self) -> None:
        """Nobody stands in another's way: nothing is owed, nothing saved."""
        self._account = 0.0


class PromptTurns:
    """Which of several prompts goes on.

    The shortest rest, but every second time the oldest, so that a short one need not wait behind a
    long one, nor a long one for ever.
    """

    def __init__(self) -> None:
        self._oldest_next = False

    def next(self, texts: Sequence[RunningRequest]) -> RunningRequest:
        """Of texts in the order of their requests, at least one."""
        self._oldest_next = not self._oldest_next and len(texts) > 1
        if not self._oldest_next:
            return texts[0]
        return min(texts, key=lambda text: text.prompt_left)
