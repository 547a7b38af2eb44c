"""Which executor opens an artifact, and what is refused before native code is loaded."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from eagle_aot.artifact import (
    PROGRAM,
    SCHEMA_VERSION,
    WEIGHTS,
    CheckpointIdentity,
    Device,
    FileRecord,
    Manifest,
    TargetIdentity,
)
from eagle_aot.common.errors import ArtifactError, UnsupportedError
from eagle_aot.runtime_runner.program.aoti import aligned, check_machine, minor
from eagle_aot.runtime_runner.program.executor import check_multiprocessors, open_program

HOPPER = Device(name="a GPU", compute_capability="9.0", multiprocessors=132, cuda="13.0")
MANIFEST = Manifest(
    schema_version=SCHEMA_VERSION,
    eagle_aot_version="0",
    versions={"torch": torch.__version__},
    backend="cuda",
    device=HOPPER,
    drafter="eagle3",
    target=TargetIdentity(name="gemma4-tiny", directory=None, files={}),
    draft=CheckpointIdentity(directory=None, files={}),
    options={},
    decisions={},
    constants={},
    methods=[],
    shapes={},
    caches=[],
    stages=[],
    self_test=None,
    files={},
)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("executor", ["auto", "aoti"])
def test_a_cuda_artifact_needs_a_gpu(tmp_path: Path, executor: str) -> None:
    with pytest.raises(UnsupportedError, match="needs an NVIDIA GPU, and this machine shows none"):
        open_program(tmp_path, MANIFEST, executor)


def test_the_official_runtime_says_which_backend_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="the installed executorch has no CudaBackend"):
        open_program(tmp_path, MANIFEST, "executorch")


@pytest.mark.parametrize(("backend", "executor", "message"), [
    ("xnnpack", "aoti", "'aoti' does not run xnnpack artifacts: use executorch"),
    ("cuda", "magic", "'magic' does not run cuda artifacts: use aoti or executorch"),
    ("tpu", "auto", "backend 'tpu': this version runs xnnpack, cuda"),
])  # fmt: skip
def test_an_executor_that_does_not_fit_is_refused(
    tmp_path: Path, backend: str, executor: str, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        open_program(tmp_path, replace(MANIFEST, backend=backend), executor)


@pytest.mark.usefixtures("hopper")
def test_a_machine_of_the_same_kind_is_accepted(tmp_path: Path) -> None:
    check_machine(tmp_path, MANIFEST)
    with pytest.raises(ArtifactError, match=f"has no {WEIGHTS}: export again"):
        open_program(tmp_path, MANIFEST, "aoti")
    listed = replace(MANIFEST, files={WEIGHTS: FileRecord(0, "0" * 64)})
    with pytest.raises(ArtifactError, match=rf"{PROGRAM}: missing"):
        open_program(tmp_path, listed, "aoti")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("change", "message"), [
    (
        {"device": replace(HOPPER, compute_capability="8.0")},
        r"compute capability 8\.0, this GPU has 9\.0: export on this machine",
    ),
    ({"device": None}, "compute capability None, this GPU has"),
    ({"versions": {"torch": "1.13.1"}}, r"compiled with torch 1\.13, this is torch 2\."),
    ({"versions": {}}, "compiled with torch , this is torch"),
])  # fmt: skip
def test_program_for_another_machine_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_machine(tmp_path, replace(MANIFEST, **change))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("executor", ["aoti", "executorch"])
def test_a_gpu_with_fewer_multiprocessors_is_refused(tmp_path: Path, executor: str) -> None:
    """Of the kind whose layers are one kernel; on other kinds nothing waits for all of them."""
    manifest = replace(MANIFEST, device=replace(HOPPER, multiprocessors=144))
    with pytest.raises(UnsupportedError, match="for 144 multiprocessors, this GPU has 132: export"):
        open_program(tmp_path, manifest, executor)
    ampere = replace(HOPPER, multiprocessors=144, compute_capability="8.0")
    check_multiprocessors(tmp_path, replace(MANIFEST, device=ampere))


def test_versions_are_compared_without_patch_and_build() -> None:
    assert minor("2.11.0+cu130") == minor("2.11.1") == "2.11"
    assert minor("2.1.1") != minor("2.11.0")


def test_inputs_are_copied_only_where_compiled_code_cannot_take_them() -> None:
    row = torch.arange(64)
    assert aligned(row) is row
    assert aligned(row[2:]).data_ptr() == row[2:].data_ptr()  # 16 bytes further
    for view in (row[1:], row[::2], row.view(8, 8).t()):
        copy = aligned(view)
        assert torch.equal(copy, view) and copy.is_contiguous()
        assert copy.data_ptr() % 16 == 0 and copy.data_ptr() != view.data_ptr()


def test_the_official_runtime_has_caches_of_a_fixed_size(tmp_path: Path) -> None:
    manifest = replace(MANIFEST, backend="xnnpack")
    with pytest.raises(UnsupportedError, match="'executorch' has caches of a fixed size; leave it"):
        open_program(tmp_path, manifest, "auto", cache_memory=1 << 30)
