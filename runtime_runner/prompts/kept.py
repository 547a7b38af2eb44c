"""What a sequence's cache holds of a text, and how much of it another text may go on from.

The rows that are kept are those that running all of the other text would compute again bit for bit,
so no token depends on it. `target_verify` gives a row the same bits however its text came about: an
answer that was decoded is as good as one that was read. `prefill` is held to its chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_aot.runtime_runner.prompts.chunks import Chunk


@dataclass(frozen=True, slots=True)
class KeptText:
    """All of `tokens` but the last have rows in the slots of their positions.

    Those of `chunks` were run by `prefill`, from the first on, all others by `target_verify`. Since
    the first row, nothing was written at positions from `written` on.
    """

    tokens: Sequence[int] = ()
    chunks: tuple[Chunk, ...] = ()
    written: int = 0

    def shared(self, prompt: Sequence[int], plan: Sequence[Chunk], rewind: int) -> int:
        """How many rows of `prompt`, to be run as in `plan`, are here.

        Never the last one, whose logits are wanted, nor the one before the first other token, with
        which a drafter pairs it. `rewind` is how far behind `written` a text may go on before keys
        are missing.
        """
        same = max(common_length(self.tokens, prompt) - 1, 0)
        chunks = prefilled(plan)
        borders = [chunk.stop for chunk in chunks[: common_length(self.chunks, chunks)]]
        kept = max((border for border in borders if border <= same), default=0)
        if chunks == self.chunks and kept == max(borders, default=0):
            kept = same
        return kept if self.written - kept <= rewind else 0

    def followed_by(
        self, tokens: Sequence[int], plan: Sequence[Chunk], kept: int, written: int
    ) -> "KeptText":
        """After running `tokens`, of which `kept` rows were here, up to the position `written`."""
        return KeptText(tokens, prefilled(plan), max(written, self.written if kept else 0))


def prefilled(plan: Sequence[Chunk]) -> tuple[Chunk, ...]:
    """The chunks that `prefill` runs."""
    return tuple(chunk for chunk in plan if not chunk.few_rows)


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How many elements, tokens or chunks, two sequences begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
