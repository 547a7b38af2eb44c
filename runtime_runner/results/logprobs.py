"""How likely a token of a text was."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class TokenLogprobs(NamedTuple):
    """Of one token of a text: its id and its `logprob`, a natural logarithm, and `top`, the same of
    the likeliest at its place, the likeliest first and of equals the lower id; None and nothing of
    a prompt's first token. Its text begins `offset` characters behind the text's beginning, None
    without a tokenizer."""

    id: int
    logprob: float | None
    top: Sequence[tuple[int, float]] = ()
    offset: int | None = None

    def first(self, count: int) -> "TokenLogprobs":
        """With so many of the likeliest."""
        return self._replace(top=self.top[:count])

    def to_json(self) -> dict[str, Any]:
        """In a line of `eagle-run --json`."""
        top = [{"id": token, "logprob": logprob} for token, logprob in self.top]
        return {"id": self.id, "logprob": self.logprob, "top": top, "offset": self.offset}
