"""The plan of a directory, a repository or a GGUF file, before its weights are downloaded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from eagle_aot.common.errors import CheckpointError, EagleError, HubError, UnsupportedError
from eagle_aot.export import ExportSpec, pipeline, plan, resolve
from eagle_aot.export.cli import main
from eagle_aot.export.loading import configs
from eagle_aot.export.plan import ExportPlan, plan_export
from eagle_aot.export.prepare.int4 import dequantize_int4
from eagle_aot.targets import TARGETS
from support.files.gguf import write_bare_llama
from support.hub import Hub, HubRepository, files_of, hub_server, use_hub
from support.pre_norm_oracle import random_pre_norm, save

TINY = TARGETS["gemma4-tiny"]
assert TINY.target_dir and TINY.draft_dir
TARGET, HEAD = files_of(TINY.target_dir), files_of(TINY.draft_dir)
WEIGHTS = ("safetensors", ".gguf")
CUDA: dict[str, Any] = {"backend": "cuda", "check_only": True}  # which needs no GPU
FP8 = b'{"quantization_config": {"quant_method": "fp8"}, "model_type": "llama"}'


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_bare_llama(tmp_path / "small.gguf")


@pytest.fixture
def hub(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {
        "org/Tiny": TARGET,
        "org/head": HEAD,
        "org/gguf": {"small.gguf": gguf.read_bytes(), "other.gguf": b"GGUF" + bytes(99)},
        "org/one": {"small.gguf": gguf.read_bytes(), "generation_config.json": b"{}"},
        "org/fp8": TARGET | {"config.json": FP8},
    }
    with hub_server({name: HubRepository(content) for name, content in files.items()}) as server:
        use_hub(server, tmp_path, monkeypatch)
        configs._directory_of_gguf.cache_clear()  # of the test before
        monkeypatch.chdir(tmp_path)
        yield server


def planned(target_model: str | Path, **options: Any) -> ExportPlan:
    made = plan_export(ExportSpec(target_model=str(target_model), **options))
    assert made is not None
    return made


def sizes(made: ExportPlan) -> dict[str, Any]:
    """Everything but the name."""
    return made.to_json() | {"target": ""}


def cached_weights(home: Path) -> list[Path]:
    return [path for path in (home / "hub").rglob("*") if path.name.endswith(WEIGHTS)]


def loaded_bytes(spec: ExportSpec) -> int:
    """Return the bytes of the weights that an export of `spec` loads."""
    resolved = resolve(spec)
    pair = pipeline.load(resolved).pair
    return (dequantize_int4(pair) if resolved.backend == "xnnpack" else pair).weight_bytes


@pytest.mark.parametrize("options", [
    {"backend": "xnnpack"}, {"backend": "xnnpack", "cpu_weights": "int8"}, CUDA,
    CUDA | {"table_quant": "int8"},
])  # fmt: skip
@pytest.mark.parametrize("name", ["tiny", "gguf"])
def test_the_planned_weights_are_those_that_are_loaded(
    name: str, options: dict[str, Any], gguf: Path
) -> None:
    path = TINY.target_dir if name == "tiny" else gguf
    spec = ExportSpec(target_model=str(path), **options)
    assert planned(str(path), **options).weight_bytes == loaded_bytes(spec)


def test_dense_linears_are_planned_as_they_will_be_quantised(tmp_path: Path) -> None:
    directory = save(random_pre_norm("qwen3", hidden_size=64, intermediate_size=96), tmp_path)
    dense = planned(directory, **CUDA).weight_bytes
    assert dense == loaded_bytes(ExportSpec(target_model=str(directory), **CUDA))
    tensors = load_file(directory / "model.safetensors").values()
    assert dense == pytest.approx(sum(2 * tensor.numel() for tensor in tensors), rel=0.05)
    options: dict[str, Any] = {**CUDA, "quantize": "int4-g32"}
    quantised = planned(directory, **options).weight_bytes
    assert quantised == loaded_bytes(ExportSpec(target_model=str(directory), **options)) < dense


def test_a_repository_is_planned_by_its_config(hub: Hub, tmp_path: Path) -> None:
    local = planned(str(TINY.target_dir), draft_dir=TINY.draft_dir, backend="xnnpack")
    remote = planned("org/Tiny", draft_model="org/head", backend="xnnpack")
    assert sizes(remote) == sizes(local)
    assert (remote.target, local.target, remote.drafter) == ("Tiny", "target", "eagle3")
    assert not cached_weights(tmp_path), "no weights are downloaded"
    assert planned("org/Tiny").drafter == "ngram"


@pytest.mark.parametrize("name", ["org/gguf:small", "org/one"])
def test_a_gguf_of_a_repository_is_planned_by_its_metadata(
    hub: Hub, gguf: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "FIRST_BYTES", 700)  # so that more must be read
    assert sizes(planned(name, **CUDA)) == sizes(planned(gguf, **CUDA))
    assert hub.ranges and not cached_weights(tmp_path)


def test_metadata_without_end_is_not_read_to_the_end(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "FIRST_BYTES", 700)
    monkeypatch.setattr(configs, "MOST_BYTES", 1400)
    with pytest.raises(CheckpointError, match=r"small\.gguf: its metadata takes more than"):
        planned("org/gguf:small", **CUDA)


def test_a_server_without_ranges_is_read_no_further_than_needed(
    hub: Hub, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.faults, "whole", True)
    assert sizes(planned("org/gguf:small", **CUDA)) == sizes(planned(gguf, **CUDA))
    assert not hub.ranges


@pytest.mark.parametrize(("name", "error", "line"), [
    ("org/fp8", UnsupportedError, "quantization method 'fp8': known are"),
    ("org/gguf:other", CheckpointError, "other.gguf"),
    ("org/none", HubError, "org/none: neither a path here nor a repository"),
    ("org/gguf", EagleError, "2 GGUF files: name one"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_before_a_download(
    hub: Hub, tmp_path: Path, name: str, error: type[EagleError], line: str
) -> None:
    with pytest.raises(error, match=line):
        planned(name)
    assert not cached_weights(tmp_path)


@pytest.mark.parametrize("name", ["org/Tiny", "org/gguf:small"])
def test_an_export_that_does_not_fit_stops_before_a_download(
    hub: Hub, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "free_bytes", lambda device: 10**5)
    arguments = ["--target-model", name, "--backend", "xnnpack", "--output-dir", "out"]
    done = CliRunner().invoke(main, arguments)
    *lines, last = done.stderr.splitlines()
    assert done.exit_code == 1 and any(" for xnnpack needs " in line for line in lines)
    assert last.startswith("Error: ") and last.endswith("use a larger machine")
    assert not cached_weights(tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_check_of_a_repository_needs_no_weights(hub: Hub, tmp_path: Path) -> None:
    arguments = ["--target-model", "org/Tiny", "--drafter", "ngram", "--backend", "xnnpack"]
    done = CliRunner().invoke(main, [*arguments, "--check-only", "--dummy-layers", "1"])
    assert done.exit_code == 0, done.output
    assert "Tiny for xnnpack needs" in done.stderr and "to download: " in done.stderr
    assert "org/Tiny: its geometry is checked, with random weights" in done.stderr
    assert done.stdout.count("graph contract holds") == 2
    assert not cached_weights(tmp_path)


def test_a_registered_repository_is_planned_without_the_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.faults.status = 500
    made = planned("HuggingFaceTB/SmolLM2-135M-Instruct", **CUDA)
    assert (made.target, made.drafter) == ("smollm2-135m", "eagle3")
    with pytest.raises(HubError, match="the Hub answers 500"):
        planned("org/Tiny")
