"""Caches cost nothing while a program is lowered."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

if not find_spec("triton"):
    pytest.skip("the CUDA backend needs triton to import", allow_module_level=True)

from executorch.backends.cuda import cuda_backend, cuda_weight_collector

from eagle_aot.export.lowering.empty_caches import caches_kept_empty, is_empty_cache


@pytest.mark.parametrize("value", [0, 1])
def test_files_are_what_the_backend_writes(tmp_path: Path, value: int) -> None:
    tensor = torch.full((3, 5_000_001), value, dtype=torch.uint8)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    wanted = cuda_weight_collector._write_tensor_storage(tensor, str(theirs))
    with caches_kept_empty():
        found = cuda_weight_collector._write_tensor_storage(tensor, str(ours))
    assert ours.read_bytes() == theirs.read_bytes()
    assert found == wanted == hashlib.sha256(ours.read_bytes()).digest()
    assert (ours.stat().st_blocks == 0) is (value == 0), "only zeros are left out"


@pytest.mark.parametrize("name", ["layers.0.kv_cache.k", "layers.0.weight"])
@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(3, 5),
        torch.zeros(3, 5).index_fill(0, torch.tensor(2), -0.5),
        torch.zeros(0),
        torch.zeros(3, device="meta"),
        nn.Parameter(torch.zeros(3)),
        "a name",
    ],
    ids=["zeros", "others", "nothing", "meta", "weight", "text"],
)
def test_a_cache_is_what_the_backend_takes_for_one(name: str, value: object) -> None:
    assert is_empty_cache(name, value) is cuda_backend._is_kv_buffer(name, value)


def test_the_backend_makes_them_so() -> None:
    emptied = torch.empty(4, 6, dtype=torch.float16).t()
    wanted = cuda_backend._full_zeros_preserving_strides(emptied, "cpu")
    with caches_kept_empty():
        found = cuda_backend._full_zeros_preserving_strides(emptied, "cpu")
    assert torch.equal(found, wanted) and found.stride() == wanted.stride()
    assert found.untyped_storage().nbytes() == wanted.untyped_storage().nbytes()
