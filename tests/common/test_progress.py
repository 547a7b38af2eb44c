"""Stages: their cost, and how a terminal shows them."""

import time
from io import StringIO

import pytest
from rich.console import Console

from eagle_aot.artifact import Stage
from eagle_aot.common import progress as progress_module
from eagle_aot.common.progress import Progress, at_once, line


def test_stages_are_measured() -> None:
    progress = Progress()
    with progress.stage("load"):
        pass
    with pytest.raises(KeyError), progress.stage("lower"):
        raise KeyError("a failure")
    (stage,) = progress.stages
    assert (stage.name, stage.gpu_peak_bytes) == ("load", 0)
    assert 0 <= stage.seconds < 5 and 2**24 < stage.host_peak_bytes < 2**40


def test_a_stage_may_have_begun_before() -> None:
    progress = Progress()
    progress.since(time.perf_counter() - 7, "begin")
    (stage,) = progress.stages
    assert stage.name == "begin" and 7 <= stage.seconds < 12


def test_a_stage_may_become_the_next_one() -> None:
    progress = Progress()
    with pytest.raises(KeyError), progress.stage("lower") as begin:
        begin("assemble")
        raise KeyError("a failure")
    with progress.stage("write") as begin:
        begin("hash")
    assert [stage.name for stage in progress.stages] == ["lower", "write", "hash"]


def test_a_terminal_shows_each_stage_once() -> None:
    progress = Progress()
    progress.console = Console(file=(written := StringIO()), force_terminal=True, width=200)
    with progress.stage("lower") as begin:
        begin("assemble")
    lines = [text for text in written.getvalue().splitlines() if "host peak" in text]
    assert [text.split()[0].rpartition("K")[2] for text in lines] == ["lower", "assemble"]


def test_a_terminal_shows_the_bytes_of_a_download() -> None:
    progress = Progress()
    progress.console = Console(file=(written := StringIO()), force_terminal=True, width=200)
    with progress.download("download org/model", 2_000_000) as show:
        show(500_000)
    assert "download org/model" in written.getvalue() and "/2.0 MB" in written.getvalue()
    assert [stage.name for stage in progress.stages] == ["download org/model"]


def test_only_long_stages_are_printed_without_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Progress().stage("load"):
        pass
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(progress_module, "LOG_AFTER_SECONDS", 0.0)
    with Progress().stage("lower"):
        pass
    output, errors = capfd.readouterr()
    assert output == ""
    assert errors.startswith("lower ") and "host peak" in errors and errors.count("\n") == 1


def test_a_function_is_called_with_each_stage_instead(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "LOG_AFTER_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    names: list[str] = []
    progress = Progress(names.append)
    with progress.stage("load"):
        pass
    with progress.stage("lower") as begin:
        begin("assemble")
    progress.console.print("a line")
    assert names == [stage.name for stage in progress.stages] == ["load", "lower", "assemble"]
    assert capfd.readouterr() == ("", "")


def test_memory_of_overlapping_spans_adds_up() -> None:
    spans = [(0.0, 4.0, 5), (3.0, 9.0, 3), (5.0, 8.0, 4)]
    assert at_once(spans) == 8
    assert at_once([spans[0], spans[2]]) == 5 and at_once(spans[1:]) == 7
    assert at_once([(0.0, 4.0, 5), (4.0, 9.0, 3)]) == 5
    assert at_once([]) == 0


def test_stages_of_other_processes_are_recorded_and_count_as_memory() -> None:
    """They take the host's memory until they are received and the GPU's during their stage: the
    GPU memory of two consecutive stages does not add up, however late the first is received."""
    progress, began = Progress(), time.perf_counter()
    with progress.stage("lower"):
        time.sleep(0.02)
        now = time.perf_counter()
        progress.record_parallel(Stage("lower prefill", 0.01, 1 << 40, 1 << 30), began, now)
        late = time.perf_counter()
        progress.record_parallel(
            Stage("lower target_verify", late - now, 1 << 40, 1 << 31), began, late
        )
    with progress.stage("write"):
        pass
    *others, lower, write = progress.stages
    assert [stage.name for stage in others] == ["lower prefill", "lower target_verify"]
    assert 0 < lower.host_peak_bytes - (2 << 40) < 1 << 40 and lower.gpu_peak_bytes == 1 << 31
    assert write.host_peak_bytes >= lower.host_peak_bytes and write.gpu_peak_bytes == 0


def test_gpu_memory_is_shown_where_there_is_some() -> None:
    stage = Stage("lower", 61.25, 3 << 30, 0)
    assert line(stage) == "lower                   61.2 s   host peak  3.00 GiB"
    assert line(Stage("lower", 61.25, 3 << 30, 1 << 29)).endswith("GPU peak  0.50 GiB")
