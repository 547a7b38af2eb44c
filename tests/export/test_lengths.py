"""Bounds of lengths, refused before anything is loaded; and the INT4 limit during a trace."""

from pathlib import Path

import pytest
from eagle_aot.export.int4_dispatch import matvec_max_m_raised

from eagle_aot.common.errors import SettingError
from eagle_aot.export import ExportOptions, Source
from eagle_aot.export.lengths import (
    MethodLengths,
    check_chain_len,
    method_lengths,
)
from eagle_aot.triton_kernels.int4_gemm import matvec_max_m


@pytest.mark.parametrize("chain_len", [-1, 0, 8, 100])
def test_a_chain_outside_the_window_is_refused(chain_len: int) -> None:
    with pytest.raises(SettingError, match=r"--chain-len -?\d+: must be in \[1, 7\]"):
        check_chain_len(chain_len)
    with pytest.raises(SettingError, match="--chain-len"):
        ExportOptions(chain_len=chain_len)


def test_every_allowed_chain_passes() -> None:
    for chain_len in range(1, 8):
        check_chain_len(chain_len)
        assert ExportOptions(chain_len=chain_len).chain_len == chain_len


@pytest.mark.parametrize(
    ("max_prefill", "max_seq_len", "window", "min_forward", "expected"),
    [
        (512, 4096, 1024, 1, MethodLengths(8, 9, 512)),
        (512, 4096, 0, 1, MethodLengths(8, 9, 512)),
        (512, 256, 0, 1, MethodLengths(8, 9, 255)),
        (512, 4096, 16, 1, MethodLengths(8, 9, 32)),
        (512, 4096, 8, 1, MethodLengths(8, 9, 16)),
        (512, 4096, 1024, 12, MethodLengths(8, 12, 512)),
        (10, 4096, 1024, 1, MethodLengths(8, 9, 10)),
    ],
)
def test_a_prefill_fits_context_and_ring_and_never_reaches_the_small_path(
    max_prefill: int, max_seq_len: int, window: int, min_forward: int, expected: MethodLengths
) -> None:
    lengths = method_lengths(max_prefill, max_seq_len, window, min_forward)
    assert lengths == expected
    assert lengths.min_prefill > lengths.max_verify_window
    assert lengths.max_draft == max(expected.max_prefill, 8)


@pytest.mark.parametrize(
    ("max_prefill", "max_seq_len", "window", "min_forward", "message"),
    [
        (9, 4096, 1024, 1, "longest prefill chunk would be 9, the shortest is 9"),
        (8, 4096, 0, 1, "longest prefill chunk would be 8, the shortest is 9"),
        (512, 9, 0, 1, "longest prefill chunk would be 8, the shortest is 9"),
        (512, 4096, 8, 17, "longest prefill chunk would be 16, the shortest is 17"),
        (512, 4096, 7, 1, "sliding window 7 is shorter than the verify window 8"),
    ],
)
def test_lengths_that_leave_no_prefill_are_refused(
    max_prefill: int, max_seq_len: int, window: int, min_forward: int, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        method_lengths(max_prefill, max_seq_len, window, min_forward)


def test_a_source_is_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--target-dir is needed: gemma4-31b"):
        Source.find("gemma4-31b", None, None, "auto")
    with pytest.raises(SettingError, match="--draft-dir is needed"):
        Source.find("gemma4-tiny", tmp_path, None, "auto")
    with pytest.raises(FileNotFoundError, match=r"--draft-dir .*gone: no such"):
        Source.find("gemma4-tiny", None, tmp_path / "gone", "auto")
    assert Source.find("gemma4-31b", None, None, "dummy").target_dir is None
    with pytest.raises(SettingError, match="--dummy-layers: a checkpoint has its own"):
        Source.find("gemma4-tiny", None, None, "auto", 2)


def test_the_int4_limit_is_restored_on_every_exit() -> None:
    before = matvec_max_m()
    with matvec_max_m_raised(8):
        assert matvec_max_m() == 8
        with matvec_max_m_raised(2):
            assert matvec_max_m() == 2
        assert matvec_max_m() == 8
        with pytest.raises(KeyError), matvec_max_m_raised(3):
            raise KeyError("a failure while tracing")
        assert matvec_max_m() == 8
    assert matvec_max_m() == before
    with pytest.raises(ValueError, match="MATVEC_MAX_M"), matvec_max_m_raised(0):
        pytest.fail("entered with a limit that no kernel serves")
    assert matvec_max_m() == before
