"""Bounds of the three methods' lengths, checked before anything is loaded."""

from dataclasses import dataclass

from eagle_aot.common.errors import SettingError
from eagle_aot.triton_kernels.int4_gemm.op import SMALL_M_LIMIT

MAX_VERIFY_WINDOW = 8
MAX_CHAIN_LEN = MAX_VERIFY_WINDOW - 1
MIN_PREFILL = SMALL_M_LIMIT + 1  # a prefill never takes the small-M path


@dataclass(frozen=True, slots=True)
class MethodLengths:
    """Rows that each method accepts: inclusive ranges, none on both sides of the INT4 dispatch."""

    max_verify_window: int
    min_prefill: int
    max_prefill: int

    @property
    def max_draft(self) -> int:
        """`draft_decode` seeds from a whole prefill chunk or from a whole verify window."""
        return max(self.max_prefill, self.max_verify_window)


def check_chain_len(chain_len: int) -> None:
    """Raise SettingError unless a chain of `chain_len` drafts and a bonus fit the verify window."""
    if not 1 <= chain_len <= MAX_CHAIN_LEN:
        raise SettingError(f"--chain-len {chain_len}: must be in [1, {MAX_CHAIN_LEN}]")


def method_lengths(
    max_prefill: int, max_seq_len: int, sliding_window: int, min_forward_len: int
) -> MethodLengths:
    """The lengths to export for a target.

    A prefill chunk is at most `2 * sliding_window`, which is what the ring caches hold, and shorter
    than the context. Raises SettingError when no length is left, or when the window is so small
    that a rejected token in a ring cache would be seen again.
    """
    if sliding_window and sliding_window < MAX_VERIFY_WINDOW:
        raise SettingError(
            f"sliding window {sliding_window} is shorter than the verify window {MAX_VERIFY_WINDOW}"
        )
    smallest = max(min_forward_len, MIN_PREFILL)
    largest = min(max_prefill, max_seq_len - 1)
    if sliding_window:
        largest = min(largest, 2 * sliding_window)
    if largest <= smallest:
        raise SettingError(
            f"the longest prefill chunk would be {largest}, the shortest is {smallest}: "
            "raise --max-prefill or --max-seq-len"
        )
    return MethodLengths(MAX_VERIFY_WINDOW, smallest, largest)
