"""What does not fit is refused with what it needs, what there is, and what to lower."""

from pathlib import Path

import pytest
import torch

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.runtime_runner import load_artifact
from eagle_aot.runtime_runner.executors import room
from eagle_aot.runtime_runner.executors.room import check_room
from support.files.artifact import write_artifact

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
GIB = 2**30


def test_caches_that_run_out_at_the_fourth_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (36 * GIB - 1, 80 * GIB))
    check_room(16 * GIB, 15 * GIB, 3, GPU)
    with pytest.raises(UnsupportedError) as caught:
        check_room(16 * GIB, 20 * GIB, 4, GPU)
    assert str(caught.value).startswith(
        "weights take 16.0 GiB and caches of 4 sequences 20.0 GiB, of which 3 would fit, and "
        "36.0 GiB are free on the GPU: end other programs there, or export with a smaller "
        "--max-seq-len or --max-batch-size or "
    )


def test_weights_that_do_not_fit_leave_room_for_no_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: GIB)
    with pytest.raises(UnsupportedError, match=r"4 sequences 20\.0 GiB, and 1\.0 GiB are free on "):
        check_room(16 * GIB, 20 * GIB, 4, HOST)


def test_where_nobody_knows_what_is_free_all_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: None)
    check_room(2**60, 2**60, 4, HOST)


def test_a_cpu_artifact_is_refused_before_its_program_is_read(tmp_path: Path) -> None:
    caches = {
        "bytes": 2**56,
        "bytes_of_a_sequence": 2**53,
        "target_bytes_of_a_sequence": 2**53,
        "draft_bytes_of_a_sequence": 0,
    }
    write_artifact(tmp_path, decisions={"caches": caches})
    with pytest.raises(UnsupportedError, match=r"caches of 8 sequences 67108864\.0 GiB,"):
        load_artifact(tmp_path)
