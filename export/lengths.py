"""How many rows each method takes, checked before anything is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_aot.common.errors import SettingError
from eagle_aot.targets.images import SOFT_TOKENS
from eagle_aot.targets.step import MAX_CHAIN_LEN, MAX_ROWS, MIN_PREFILL, longest_chunk

DEFAULT_CHAIN_LEN = 4


@dataclass(frozen=True, slots=True)
class MethodLengths:
    """Rows that each method accepts: inclusive ranges, none on both sides of the INT4 dispatch.

    `max_batch_size` is the number of sequences that the caches hold, `image_tokens` are the rows
    that a picture may take, the default first, none where prompts have no pictures.
    """

    max_rows: int
    min_prefill: int
    max_prefill: int
    max_batch_size: int
    image_tokens: tuple[int, ...] = ()

    @property
    def max_draft(self) -> int:
        """Rows of one sequence: a drafter is shown a whole chunk of a prompt at once."""
        return max(self.max_prefill, self.max_rows)


def check_chain_len(chain_len: int) -> None:
    """Raise SettingError unless the tail of a row holds a chain of `chain_len` drafts."""
    if not 1 <= chain_len <= MAX_CHAIN_LEN:
        raise SettingError(f"--chain-len {chain_len}: must be in [1, {MAX_CHAIN_LEN}]")


def drafts_of_a_round(requested: int | None, proposed: int | None) -> int:
    """Those asked for, else what a drafter's checkpoint proposes, else a default. Raises as
    `check_chain_len` does."""
    chosen = requested or proposed or DEFAULT_CHAIN_LEN
    check_chain_len(chosen)
    return chosen


def check_max_batch_size(sequences: int) -> None:
    """Raise SettingError unless one forward has a row for each sequence."""
    if not 1 <= sequences <= MAX_ROWS:
        raise SettingError(f"--max-batch-size {sequences}: must be in [1, {MAX_ROWS}]")


def check_image_tokens(image_tokens: Sequence[int]) -> None:
    """Raise SettingError unless a picture may take so many rows, each number named once."""
    unknown = [count for count in image_tokens if count not in SOFT_TOKENS]
    if unknown or not image_tokens or len(set(image_tokens)) < len(image_tokens):
        raise SettingError(
            f"--image-tokens {','.join(map(str, image_tokens))}: name some of "
            f"{', '.join(map(str, SOFT_TOKENS))}, each once"
        )


def method_lengths(
    max_prefill: int,
    max_seq_len: int,
    sliding_window: int,
    max_batch_size: int = 1,
    chunk: int = 0,
    image_tokens: tuple[int, ...] = (),
) -> MethodLengths:
    """The lengths to export for a target.

    A chunk of a prompt is no longer than what ring caches take at once, which is `chunk` rows where
    that is more than a window, and shorter than the context. Raises SettingError when no length is
    left, and where a picture does not fit into a chunk.
    """
    check_max_batch_size(max_batch_size)
    largest = min(max_prefill, max_seq_len - 1)
    if sliding_window:
        largest = min(largest, longest_chunk(sliding_window, chunk))
    if largest <= MIN_PREFILL:
        raise SettingError(
            f"the longest prefill chunk would be {largest}, the shortest is {MIN_PREFILL}: "
            "raise --max-prefill or --max-seq-len"
        )
    if image_tokens and max(image_tokens) > largest:
        raise SettingError(
            f"a picture of {max(image_tokens)} rows lies whole in one prefill chunk, which has "
            f"{largest} at most: raise --max-prefill or --max-seq-len, or lower --image-tokens"
        )
    return MethodLengths(MAX_ROWS, MIN_PREFILL, largest, max_batch_size, image_tokens)
