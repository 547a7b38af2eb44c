"""What a sequence's cache holds of a text, and how much of it another text may go on from.

The rows that are kept are those that running all of the other text would compute again bit for bit,
so no token depends on it. Both methods give a row the same bits however its text came about and was
cut: an answer that was decoded is as good as one that was read. But `prefill` and `target_verify`
may differ, so a row is kept only where the other text would run it by the same one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress, count
from operator import ne

from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """All of `tokens` but the last have rows in the slots of their positions.

    The first `prefilled` were run by `prefill`, all others by `target_verify`. Since the first row,
    nothing was written at positions from `written` on. What drafts was shown the first `shown`.
    """

    tokens: Sequence[int] = ()
    prefilled: int = 0
    written: int = 0
    shown: int = 0

    @property
    def rows(self) -> int:
        """How many there are."""
        return max(len(self.tokens) - 1, 0)

    def shared(
        self,
        prompt: Sequence[int],
        plan: Callable[[int], Sequence[Chunk]],
        rewind: int,
        window: int = 0,
        *,
        shown: bool = False,
    ) -> int:
        """How many rows of `prompt` are here, or were `shown` to what drafts; `plan` says how it is
        run where so many are kept.

        Never the last one, whose logits are wanted, nor the one before the first other token, with
        which a drafter pairs it. `rewind` is how far behind `written` a text may go on before keys
        of a `window` are missing; in front of a window's length there are none to miss.
        """
        kept = max(common_length(self.tokens, prompt) - 1, 0)
        if shown:
            kept = min(kept, self.shown)
        other = prefilled(plan(0))
        if other != self.prefilled:
            kept = min(kept, other, self.prefilled)
        return kept if self.written - max(plan(kept)[0].start, window) <= rewind else 0

    def followed_by(
        self, tokens: Sequence[int], plan: Sequence[Chunk], kept: int, written: int, shown: int = 0
    ) -> "CachedPrefix":
        """After running `tokens`, of which `kept` rows were here, up to the position `written`;
        the first `shown` rows have been shown, unless more had been before.

        `plan` is that of their prompt with nothing kept."""
        written = max(written, self.written if kept else 0)
        return CachedPrefix(tokens, prefilled(plan), written, max(shown, min(kept, self.shown)))


def prefilled(plan: Sequence[Chunk]) -> int:
    """How many rows `prefill` runs, of a plan with nothing kept."""
    return sum(len(chunk) for chunk in plan if not chunk.few_rows)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    differ = map(ne, one, other)  # texts are long, and there are many: no loop in Python
    return next(compress(count(), differ), min(len(one), len(other)))
