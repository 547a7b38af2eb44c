"""An artifact that does not fit the free memory is refused with the figures."""

from pathlib import Path

import pytest
import torch

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.runtime_runner import load_artifact
from eagle_aot.runtime_runner.program import executor
from eagle_aot.runtime_runner.program.executor import check_memory
from support.files.artifact import write_artifact

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
GIB = 2**30


def test_refusal_says_how_many_sequences_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (36 * GIB - 1, 80 * GIB))
    check_memory(16 * GIB, 15 * GIB, 3, GPU)
    with pytest.raises(UnsupportedError) as caught:
        check_memory(16 * GIB, 20 * GIB, 4, GPU)
    assert str(caught.value).startswith(
        "weights take 16.0 GiB and caches of 4 sequences 20.0 GiB (3 would fit), and "
        "36.0 GiB are free on the GPU: end other programs there, or export with a smaller "
        "--max-seq-len, --max-prefill or --max-batch-size or "
    )


def test_weights_that_do_not_fit_are_refused_without_a_number_of_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "free_bytes", lambda device: GIB)
    with pytest.raises(UnsupportedError, match=r"4 sequences 20\.0 GiB, and 1\.0 GiB are free on "):
        check_memory(16 * GIB, 20 * GIB, 4, HOST)


def test_nothing_is_refused_where_free_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "free_bytes", lambda device: None)
    check_memory(2**60, 2**60, 4, HOST)


def test_cpu_artifact_is_refused_before_its_program_is_read(tmp_path: Path) -> None:
    caches = {
        "bytes": 2**56,
        "bytes_of_a_sequence": 2**53,
        "target_bytes_of_a_sequence": 2**53,
        "draft_bytes_of_a_sequence": 0,
    }
    write_artifact(tmp_path, decisions={"caches": caches})
    with pytest.raises(UnsupportedError, match=r"caches of 8 sequences 67108864\.0 GiB,"):
        load_artifact(tmp_path)
