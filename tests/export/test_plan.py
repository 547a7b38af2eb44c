"""The plan of an export against recorded exports, and what stops one before a download."""

import json
import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from eagle_aot.artifact.methods import KEPT_STATES
from eagle_aot.common.errors import ExportError
from eagle_aot.export import ExportSpec, plan
from eagle_aot.export.cli import main
from eagle_aot.export.plan import (
    ExportPlan,
    check_machine,
    exporting_line,
    plan_export,
    running_line,
)
from eagle_aot.targets import TARGETS, load_target
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.decoder.recurrent_cache import RecurrentCache
from eagle_aot.targets.recorded import RECORDED_EXPORTS
from support.random_pair import qwen3_5

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
TINY: dict[str, Any] = {"target_model": "gemma4-tiny", "backend": "xnnpack"}
SMOLLM2: dict[str, Any] = {"target_model": "smollm2-135m", "backend": "xnnpack"}
LARGE: dict[str, Any] = {
    "target_model": "gemma4-31b", "load_format": "dummy", "backend": "cuda", "check_only": True,
    "max_seq_len": 32768, "max_batch_size": 8, "jobs": 3,
}  # fmt: skip


@cache  # several tests begin with the same plan
def planned(**options: Any) -> ExportPlan:
    made = plan_export(ExportSpec(**options))
    assert made is not None
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("options", "files", "caches", "host", "gpu"), [
    (TINY, 30_474_368, 3_153_920, 0.74, 0),
    (SMOLLM2 | {"max_seq_len": 1024}, 578_652_000, 53_329_920, 3.92, 0),
    (SMOLLM2 | {"cpu_weights": "int8", "max_seq_len": 2048}, 147_011_584, 102_088_704, 2.80, 0),
    (LARGE, 24_363_400_000, 42_674_946_048, 25.25, 24.14),
])  # fmt: skip
def test_plan_is_within_a_tenth_of_measured_exports(
    options: dict[str, Any], files: int, caches: int, host: float, gpu: float
) -> None:
    """Model files in bytes and peaks in GiB, of a CPU and of an H100 (2026-11-25)."""
    made = planned(**options)
    assert made.weight_bytes == pytest.approx(files, rel=0.1)
    assert made.cache_bytes == caches
    assert made.host_bytes == pytest.approx(host * 2**30, rel=0.1)
    assert made.gpu_bytes == pytest.approx(gpu * 2**30, rel=0.1)


def test_plan_agrees_with_the_artifact(tiny_artifact: Path) -> None:
    manifest = json.loads((tiny_artifact / "manifest.json").read_text())
    names = "max_seq_len", "max_prefill", "max_batch_size"
    made = planned(**TINY, **{name: manifest["options"][name] for name in names})
    shapes = {n: (rows["min_rows"], rows["max_rows"]) for n, rows in manifest["shapes"].items()}
    assert made.methods == shapes and list(made.methods) == manifest["methods"]
    assert made.cache_bytes == manifest["decisions"]["caches"]["bytes"]
    size = sum(manifest["files"][name]["bytes"] for name in ("model.pte", "model.ptd"))
    assert made.weight_bytes == pytest.approx(size, rel=0.1)


def test_public_checkpoints_that_are_dense_are_planned_dense() -> None:
    options: dict[str, Any] = {"backend": "cuda", "check_only": True}
    dense = planned(target_model="qwen3-0.6b", **options).weight_bytes
    assert dense == pytest.approx(2 * 596_049_920, rel=0.01)  # bfloat16, one table
    assert planned(target_model="qwen3-0.6b", quantize="int4-g32", **options).weight_bytes < dense


@pytest.mark.parametrize(("free", "line"), [
    (4 * 10**7, "take 60.1 MB on the host, and 40.0 MB are free: --cpu-weights int8 would fit"),
    (10**6, "take 60.1 MB on the host, and 1.0 MB are free: no setting would fit"),
])  # fmt: skip
def test_too_little_memory_of_the_host_stops_an_export(
    free: int, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(plan, "free_bytes", lambda device: free)
    spec = ExportSpec(**TINY, output_dir=tmp_path / "new")
    with pytest.raises(ExportError, match=line):
        check_machine(planned(**TINY), spec)


def test_a_setting_that_another_option_excludes_is_not_suggested(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, Any] = {**TINY, "table_quant": "int8"}  # which --cpu-weights includes
    monkeypatch.setattr(plan, "free_bytes", lambda device: 4 * 10**7)
    with pytest.raises(ExportError, match="no setting would fit"):
        check_machine(planned(**options), ExportSpec(**options, output_dir=tmp_path / "new"))


def test_export_stops_before_a_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests have no Hub: an export that went on would say so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "free_bytes", lambda device: 0)
    monkeypatch.setattr(plan, "_smaller", lambda spec, made, free: "no")
    done = CliRunner().invoke(main, ["--target-model", "qwen3-0.6b", "--backend", "xnnpack"])
    *lines, last = done.output.splitlines()
    assert lines[0].startswith("qwen3-0.6b for xnnpack needs ")
    assert done.exit_code == 1 and last.startswith("Error: qwen3-0.6b: weights take ")


@pytest.mark.parametrize(("free", "line"), [
    (10**9, "1.00 GB are free: --quantize int4-g32 would fit"), (10**8, "free: no setting would"),
])  # fmt: skip
def test_too_little_memory_of_a_gpu_stops_an_export(
    free: int, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = planned(target_model="qwen3-0.6b", backend="cuda", check_only=True)
    monkeypatch.setattr(plan, "free_bytes", lambda device: free if device.type == "cuda" else None)
    spec = ExportSpec(target_model="qwen3-0.6b", output_dir=tmp_path / "new")
    with pytest.raises(ExportError, match=rf"on the GPU, and .*{line}"):
        check_machine(made, spec)


def test_one_process_is_suggested_where_several_need_too_much_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, Any] = {**TINY, "backend": "cuda", "check_only": True, "jobs": 4}
    made = planned(**options)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(ExportError, match=r"another --output-dir; --jobs 1 takes 12\.. MiB$"):
        check_machine(made, ExportSpec(**options, output_dir=tmp_path / "new"))


def test_the_longest_context_that_fits_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(**TINY, max_seq_len=65536)
    free = made.weight_bytes + made.cache_bytes // 2
    monkeypatch.setattr(plan, "free_bytes", lambda device: free)
    length = int(running_line(made).split("--max-seq-len ")[1].split()[0])
    fits, longer = (planned(**TINY, max_seq_len=n) for n in (length, length + 512))
    assert fits.weight_bytes + fits.cache_bytes <= free < longer.weight_bytes + longer.cache_bytes
    assert running_line(fits) == ""


def test_texts_share_a_gpu_that_is_too_small_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {**TINY, "backend": "cuda", "check_only": True}
    made = planned(**options, max_seq_len=65536, max_batch_size=4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    free = made.weight_bytes + made.cache_bytes * 3 // 4
    monkeypatch.setattr(plan, "free_bytes", lambda device: free)
    assert running_line(made).endswith("3 texts of full length share them")
    monkeypatch.setattr(plan, "free_bytes", lambda device: made.weight_bytes)
    assert "--max-seq-len" in running_line(made)


def test_recurrent_states_are_planned_as_they_are_allocated(tmp_path: Path) -> None:
    """Of all sequences, those that are kept included; more context is more rows of keys alone."""
    qwen3_5().save_pretrained(tmp_path)
    options: dict[str, Any] = {"target_model": str(tmp_path), "backend": "xnnpack"}
    sizes = []
    for length in (512, 1024):
        target = load_target(tmp_path, length, max_batch_size=3)
        assert isinstance(target, nn.Module)
        caches = [m for m in target.modules() if isinstance(m, KVCache | RecurrentCache)]
        allocated = sum(buffer.nbytes for cache in caches for buffer in cache.buffers())
        made = planned(**options, max_seq_len=length, max_batch_size=3)
        assert made.drafter == "ngram" and made.cache_bytes == allocated
        sizes.append(made.cache_bytes - length * made.cache_bytes_per_token)
    states = 2 * 3 * (1 + KEPT_STATES) * 4 * 16 * 32 * 4  # two layers of four states, in float32
    assert sizes[0] == sizes[1] > states


def test_less_memory_than_the_estimate_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(**TINY)
    for free, line in ((made.host_bytes, ""), (10**8, "to export it here 100.0 MB of host memory")):
        monkeypatch.setattr(plan, "free_bytes", lambda device, free=free: free)
        assert exporting_line(made).startswith(line) and bool(exporting_line(made)) == bool(line)


def test_check_reports_the_plan_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--load-format", "dummy", "--dummy-layers", "1", "--drafter", "ngram"]
    arguments = ["--target-model", "gemma4-tiny", *options, "--backend", "xnnpack"]
    done = CliRunner().invoke(main, [*arguments, "--check-only", "--json"])
    report = json.loads(done.stdout)
    assert list(report["nodes"]) == list(report["plan"]["methods"]) == ["prefill", "target_verify"]
    assert report["plan"]["recorded"][0]["seconds"] == 32
    assert done.exit_code == 0 and not list(tmp_path.iterdir())


def test_recorded_times_are_in_their_files() -> None:
    assert set(RECORDED_EXPORTS) <= set(TARGETS)
    for records in RECORDED_EXPORTS.values():
        for record in records:
            text = (RESULTS / record.source).read_text()
            assert f"{record.seconds} s" in text or f"0m{record.seconds}." in text
