"""What a sequence's cache holds of a text, and how much of it another text may go on from.

The rows that are kept are those that running all of the other text would compute again bit for bit,
so no token depends on it. `target_verify` gives a row the same bits however its text came about: an
answer that was decoded is as good as one that was read. `prefill` is held to its chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_aot.runtime_runner.chunks import Chunk


@dataclass(frozen=True, slots=True)
class KeptText:
    """All of `tokens` but the last have rows in the slots of their positions.

    The first `prefilled` of them were run by `prefill`, in whole chunks, all others by
    `target_verify`. Since the first row, nothing was written at positions from `written` on.
    """

    tokens: Sequence[int] = ()
    prefilled: int = 0
    written: int = 0

    def shared(self, prompt: Sequence[int], plan: Sequence[Chunk], rewind: int) -> int:
        """How many rows of `prompt`, to be run as in `plan`, are here.

        Never the last one, whose logits are wanted, nor the one before the first other token, with
        which a drafter pairs it. `rewind` is how far behind `written` a text may go on before keys
        are missing.
        """
        same = max(common_length(self.tokens, prompt) - 1, 0)
        borders = [chunk.stop for chunk in plan if not chunk.few_rows]
        if max(borders, default=0) == self.prefilled <= same:
            kept = same
        else:
            kept = max((b for b in borders if b <= min(same, self.prefilled)), default=0)
        return kept if self.written - kept <= rewind else 0

    def followed_by(
        self, tokens: Sequence[int], plan: Sequence[Chunk], kept: int, written: int
    ) -> "KeptText":
        """After running `tokens`, of which `kept` rows were here, up to the position `written`."""
        prefilled = max((chunk.stop for chunk in plan if not chunk.few_rows), default=0)
        return KeptText(tokens, prefilled, max(written, self.written if kept else 0))


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
