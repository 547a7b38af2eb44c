"""The number of rows that each method takes."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_aot.common.errors import SettingError
from eagle_aot.targets.images import SOFT_TOKENS
from eagle_aot.targets.step import (
    MAX_CHAIN_LEN,
    MAX_ROWS,
    MAX_SEQUENCES,
    MAX_STEP_ROWS,
    MIN_PREFILL,
    longest_chunk,
)

DEFAULT_CHAIN_LEN = 4


@dataclass(frozen=True, slots=True)
class MethodLengths:
    """The rows that each method accepts: inclusive bounds, so that a method's INT4 linears use one
    kernel only.

    A step has at most `max_rows` rows of a sequence, `max_step_rows` in all. `max_batch_size` is
    the number of sequences that the caches hold. `image_tokens` are the rows that an image may
    take, the default first; it is empty if prompts contain no images.
    """

    max_rows: int
    max_step_rows: int
    min_prefill: int
    max_prefill: int
    max_batch_size: int
    image_tokens: tuple[int, ...] = ()

    @property
    def max_draft(self) -> int:
        """Rows of one sequence in a drafter's method, which takes a whole prompt chunk at once."""
        return max(self.max_prefill, self.max_rows)


def check_chain_len(chain_len: int) -> None:
    """Raise SettingError unless the tail of a row holds a chain of `chain_len` drafts."""
    if not 1 <= chain_len <= MAX_CHAIN_LEN:
        raise SettingError(f"--chain-len {chain_len}: must be in [1, {MAX_CHAIN_LEN}]")


def choose_chain_len(requested: int | None, proposed: int | None) -> int:
    """Return the requested number of drafts per round, otherwise the one that the drafter's
    checkpoint proposes, otherwise a default. Raises as `check_chain_len` does."""
    chain_len = requested or proposed or DEFAULT_CHAIN_LEN
    check_chain_len(chain_len)
    return chain_len


def check_max_batch_size(sequences: int, most: int = MAX_SEQUENCES) -> None:
    """Raise SettingError unless one forward, of `most` sequences at most, has a row for each."""
    if not 1 <= sequences <= most:
        raise SettingError(f"--max-batch-size {sequences}: must be in [1, {most}]")


def check_image_tokens(image_tokens: Sequence[int]) -> None:
    """Raise SettingError unless these are numbers of rows that an image may take, without
    duplicates."""
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
    max_step_rows: int = MAX_STEP_ROWS,
    block: int = 1,
) -> MethodLengths:
    """Return the lengths to export for a target whose steps have up to `max_step_rows` rows.

    A prompt chunk is shorter than the context, a multiple of `block`, and no longer than what ring
    caches take at once: `chunk` rows, or a window where that is 0. Raises SettingError if no length
    is left, and if an image does not fit into a chunk.
    """
    check_max_batch_size(max_batch_size, min(max_step_rows, MAX_SEQUENCES))
    largest = min(max_prefill, max_seq_len - 1)
    if sliding_window:
        largest = min(largest, longest_chunk(sliding_window, chunk))
    largest, least = largest // block * block, -(-MIN_PREFILL // block) * block
    if largest <= least:
        raise SettingError(
            f"the longest prefill chunk would be {largest}, the shortest is {least}: "
            "raise --max-prefill or --max-seq-len"
        )
    if image_tokens and max(image_tokens) > largest:
        raise SettingError(
            f"an image of {max(image_tokens)} rows must fit into one prefill chunk, which has at "
            f"most {largest}: raise --max-prefill or --max-seq-len, or lower --image-tokens"
        )
    return MethodLengths(MAX_ROWS, max_step_rows, least, largest, max_batch_size, image_tokens)
