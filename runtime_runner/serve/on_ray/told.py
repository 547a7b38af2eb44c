"""What clients know of a text that another replica begins anew."""

from dataclasses import dataclass

from eagle_aot.runtime_runner.serve.answers import Piece


class Told:
    """How much of a text was told, so that none of it is told twice."""

    def __init__(self) -> None:
        self._characters, self._tokens, self._logprobs = Progress(), Progress(), Progress()

    def again(self) -> None:
        """From the text's beginning."""
        for progress in (self._characters, self._tokens, self._logprobs):
            progress.seen = 0

    def rest(self, piece: Piece) -> Piece:
        """What is new in a piece."""
        text = piece.text[self._characters.old(len(piece.text)) :]
        logprobs = piece.logprobs[self._logprobs.old(len(piece.logprobs)) :]
        trace = dict(piece.trace)
        if tokens := trace.get("trace", {}).get("tokens"):
            new = tokens[self._tokens.old(len(tokens)) :]
            trace = {"trace": trace["trace"] | {"tokens": new}} if new else {}
        return Piece(text, trace, logprobs)


@dataclass(slots=True)
class Progress:
    """How many of something were told, and `seen` in this attempt."""

    told: int = 0
    seen: int = 0

    def old(self, count: int) -> int:
        """Of so many that are seen next, how many were told already, or more."""
        old = max(0, self.told - self.seen)
        self.seen += count
        self.told = max(self.told, self.seen)
        return old
