"""The disk that an export needs, against what ExecuTorch's collector of weights writes."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from executorch.backends.cuda.cuda_weight_collector import AOTI_DEVICE_TYPE_CUDA as DEVICE
from executorch.backends.cuda.cuda_weight_collector import CudaWeightCollector
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import PreprocessResult
from torch.export.pt2_archive._package_weights import TensorProperties, Weights

from eagle_aot.common.errors import ExportError
from eagle_aot.export.disk import DiskNeeds, check_disks, disk_needs
from eagle_aot.export.lowering.backend import CACHE_DIR
from eagle_aot.export.pair import Pair, weight_bytes
from support.pairs import dummy, load

SIZE = 10**6
OTHER_DISK = Path("/dev/shm")


def test_weights_are_on_the_disk_twice_while_a_method_is_added(tmp_path: Path) -> None:
    """The second method's files are written before they are found to be those of the first."""
    collector, held = CudaWeightCollector(), []
    tensor = torch.ones(SIZE, dtype=torch.uint8)
    for method in (b"prefill", b"target_verify"):
        weights = Weights({"weight": (tensor, TensorProperties(tensor))})
        files = collector.materialize(weights, str(tmp_path), lambda _: DEVICE)
        held.append(used(tmp_path))
        store = NamedDataStore()
        store.add_named_data(method.decode(), b"code", 1, None)
        result = PreprocessResult(method, {}, store.get_named_data_store_output())
        collector.add_preprocess_result(result, files, "cuda")
        held.append(used(tmp_path))
    assert held == [SIZE, SIZE, 2 * SIZE, SIZE]


def used(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load(dummy("gemma4-tiny")).pair


def needs(pair: Pair, backend: str, jobs: int = 1, cpu_weights: str = "float32") -> DiskNeeds:
    spec = SimpleNamespace(jobs=jobs, cpu_weights=cpu_weights)
    return disk_needs(pair, cast(Any, SimpleNamespace(backend=backend, spec=spec)))


def test_needs_are_sizes_of_the_weights(pair: Pair) -> None:
    weights, target = pair.weight_bytes, weight_bytes(cast(torch.nn.Module, pair.target))
    compiled = 2 * target + 2 * weight_bytes(cast(torch.nn.Module, pair.draft))
    assert weights / 2 < target < weights and compiled >= 2 * weights
    assert needs(pair, "cuda") == DiskNeeds(2 * weights, weights, 2 * weights)
    assert needs(pair, "cuda", jobs=3) == DiskNeeds(weights + compiled, weights, compiled)
    assert needs(pair, "xnnpack") == DiskNeeds(weights, weights)
    assert needs(pair, "xnnpack", cpu_weights="int4") == DiskNeeds(weights // 2, weights // 2)


def test_the_disk_of_the_compiler_is_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {tmp_path: 10, OTHER_DISK: 20}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[path]))
    out = tmp_path / "out"
    monkeypatch.delenv(CACHE_DIR, raising=False)
    check_disks(out, DiskNeeds(together=10, artifact=5, compiler=10))
    with pytest.raises(ExportError, match=r"out: weights take .*: choose another --output-dir"):
        check_disks(out, DiskNeeds(together=11, artifact=5, compiler=10))
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "cache"))
    with pytest.raises(ExportError, match="choose another --output-dir"):
        check_disks(out, DiskNeeds(together=11, artifact=5, compiler=10))
    monkeypatch.setenv(CACHE_DIR, str(OTHER_DISK / "not" / "there"))
    check_disks(out, DiskNeeds(together=30, artifact=10, compiler=20))
    with pytest.raises(ExportError, match=rf"/dev/shm: compiling takes .*: name .* in {CACHE_DIR}"):
        check_disks(out, DiskNeeds(together=30, artifact=10, compiler=21))
    check_disks(out, DiskNeeds(together=10, artifact=10))
