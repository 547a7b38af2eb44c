"""Bounds of lengths, refused before anything is loaded."""

import pytest

from eagle_aot.common.errors import SettingError
from eagle_aot.export import ExportSpec
from eagle_aot.export.lengths import (
    MethodLengths,
    check_chain_len,
    check_max_batch_size,
    method_lengths,
)
from eagle_aot.targets.step import ring_slots


@pytest.mark.parametrize("chain_len", [-1, 0, 16, 100])
def test_a_chain_that_no_tail_holds_is_refused(chain_len: int) -> None:
    with pytest.raises(SettingError, match=r"--chain-len -?\d+: must be in \[1, 15\]"):
        check_chain_len(chain_len)
    with pytest.raises(SettingError, match=r"--chain-len .* from 1 to 15$"):
        ExportSpec(chain_len=chain_len)


def test_every_allowed_chain_passes() -> None:
    for chain_len in range(1, 16):
        check_chain_len(chain_len)
        assert ExportSpec(chain_len=chain_len).chain_len == chain_len


@pytest.mark.parametrize("sequences", [-1, 0, 65])
def test_more_sequences_than_a_forward_has_rows_are_refused(sequences: int) -> None:
    message = r"--max-batch-size -?\d+: must be in \[1, 64\]"
    with pytest.raises(SettingError, match=message):
        check_max_batch_size(sequences)
    with pytest.raises(SettingError, match=r"--max-batch-size .* from 1 to 64$"):
        ExportSpec(max_batch_size=sequences)
    with pytest.raises(SettingError, match=message):
        method_lengths(512, 4096, 0, sequences)


@pytest.mark.parametrize(("max_prefill", "max_seq_len", "window", "sequences", "expected"), [
    (512, 4096, 1024, 1, MethodLengths(64, 65, 512, 1)),
    (512, 4096, 0, 1, MethodLengths(64, 65, 512, 1)),
    (512, 256, 0, 1, MethodLengths(64, 65, 255, 1)),
    (512, 4096, 128, 1, MethodLengths(64, 65, 128, 1)),
    (512, 4096, 16, 1, MethodLengths(64, 65, 96, 1)),
    (512, 4096, 1, 1, MethodLengths(64, 65, 96, 1)),
    (66, 4096, 1024, 1, MethodLengths(64, 65, 66, 1)),
    (512, 4096, 1024, 64, MethodLengths(64, 65, 512, 64)),
])  # fmt: skip
def test_a_prefill_fits_context_and_ring_and_never_reaches_the_small_path(
    max_prefill: int, max_seq_len: int, window: int, sequences: int, expected: MethodLengths
) -> None:
    lengths = method_lengths(max_prefill, max_seq_len, window, sequences)
    assert lengths == expected
    assert lengths.min_prefill > lengths.max_rows
    assert lengths.max_draft == max(expected.max_prefill, 64)


def test_a_ring_may_be_made_for_longer_chunks() -> None:
    assert method_lengths(2048, 4096, 1024).max_prefill == 1024
    assert method_lengths(2048, 4096, 1024, chunk=2048).max_prefill == 2048
    assert ring_slots(1024) == ring_slots(1024, 512) == 2048 and ring_slots(1024, 2048) == 3072


@pytest.mark.parametrize(("max_prefill", "max_seq_len", "window", "message"), [
    (65, 4096, 1024, "longest prefill chunk would be 65, the shortest is 65"),
    (64, 4096, 0, "longest prefill chunk would be 64, the shortest is 65"),
    (512, 65, 0, "longest prefill chunk would be 64, the shortest is 65"),
])  # fmt: skip
def test_lengths_that_leave_no_prefill_are_refused(
    max_prefill: int, max_seq_len: int, window: int, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        method_lengths(max_prefill, max_seq_len, window)
