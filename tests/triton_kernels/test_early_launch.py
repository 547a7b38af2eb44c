"""Kernels that begin early, compiled for an H100: what they do before the one before has ended."""

import re
from collections.abc import Callable
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import pytest
import torch
from torch import Tensor

import eagle_aot.triton_kernels
from eagle_aot.triton_kernels.device import H100
from support.kernels.compiled import launches

triton = pytest.importorskip("triton", reason="triton is not installed")

from eagle_aot.triton_kernels import early_launch  # noqa: E402

BFLOAT16, INT64 = torch.bfloat16, torch.int64


def empty(*shape: int, dtype: torch.dtype = BFLOAT16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def int4_product(kernel: ModuleType) -> None:
    scales = empty(2, 4, 128)
    kernel.launch(
        empty(1, 8, 512), empty(2, 4, 4096, dtype=torch.int16), scales, scales, 256, 2, ""
    )


def dense_product(kernel: ModuleType) -> None:
    kernel.launch(empty(1, 8, 512), empty(256, 512), 2)


def residual_norm(kernel: ModuleType) -> None:
    weight, parts = empty(512), empty(2, 1, 8, 512, dtype=torch.float32)
    kernel.launch(parts, empty(1, 8, 512), weight, empty(1), weight, 1e-6, 1e-6)


def norm_rope_store(kernel: ModuleType) -> None:
    angles, own, weight = empty(1, 8, 1, 64), empty(8, dtype=INT64), empty(64)
    caches, parts = (empty(2, 64, 64), empty(2, 64, 64)), empty(2, 1, 8, 512)
    moves, norms = (empty(1, 16, dtype=INT64),) * 2, (weight, weight)
    kernel.launch(parts, (angles, angles), norms, caches, own, moves, 4, True, 1e-6)


def attention(kernel: ModuleType) -> None:
    caches, rows = empty(2, 1, 256, 64), (empty(1, 8, dtype=INT64), empty(1, dtype=INT64))
    tail = empty(1, 8, 16, dtype=INT64)
    kernel.launch(empty(1, 8, 4, 64), caches, caches, *rows, tail, 1.0, 0, 0)


LAUNCHES: dict[Callable[[ModuleType], None], str] = {
    int4_product: "int4_gemm.small_m",
    dense_product: "dense_gemm.kernel",
    residual_norm: "residual_norm.kernel",
    norm_rope_store: "norm_rope_store.kernel",
    attention: "sdpa_splitk.kernel",
}
WEIGHTS = {
    "int4_small_m_kernel": 3,
    "dense_small_m_kernel": 1,
    "residual_norm_kernel": 2,
    "norm_rope_store_kernel": 2,
    "sdpa_splitk_kernel": 0,
    "sdpa_combine_kernel": 0,
}
"""How many tensors of each kernel are constants of its artifact."""

BEGIN, WAIT = "griddepcontrol.launch_dependents;", "griddepcontrol.wait;"
FETCH = "cp.async.bulk.prefetch.L2.global"
MEMORY = re.compile(
    r"(?:^|[;{])\s*(?:@%?\w+ )?((?:ld|st|atom|red|cp|prefetch)\.(?!param)\S*)", re.M
)


@pytest.fixture(scope="module")
def programs() -> dict[str, str]:
    """PTX of each kernel, by name."""
    found = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for launch, name in LAUNCHES.items():
            kernel = import_module(f"eagle_aot.triton_kernels.{name}")
            for call in launches(monkeypatch, kernel, lambda: launch(kernel), H100):  # noqa: B023
                program = call.compiled(H100)
                found[program.metadata.name] = program.asm["ptx"]
    return found


def test_a_kernel_that_can_begin_early_is_known_by_name() -> None:
    folder = eagle_aot.triton_kernels
    modules = [found.name for found in walk_packages(folder.__path__, f"{folder.__name__}.")]
    kernels = {
        value.fn.__name__
        for name in modules
        for value in vars(import_module(name)).values()
        if isinstance(value, triton.runtime.KernelInterface)
        and value.fn.__name__.endswith("_kernel")
        and "EARLY" in value.arg_names
    }
    assert kernels == set(early_launch.KERNELS)


@pytest.mark.parametrize("name", early_launch.KERNELS)
def test_nothing_is_read_or_written_before_the_wait(programs: dict[str, str], name: str) -> None:
    """But for weights on their way to L2."""
    body = programs[name]
    before, wait, behind = body.partition(WAIT)
    assert wait and WAIT not in behind and body.count(BEGIN) == before.count(BEGIN) == 1
    assert MEMORY.findall(before) == [FETCH] * WEIGHTS[name]
    assert MEMORY.search(behind) and FETCH not in behind
    entry = before[before.index(".entry") :]
    assert not re.search(r"\bbra\b|\bret;", entry)  # every program comes to the wait


@pytest.mark.parametrize(
    ("capability", "interpreted", "early"),
    [((9, 0), False, True), ((12, 0), False, True), ((8, 9), False, False), ((9, 0), True, False)],
)
def test_only_gpus_that_can_wait_are_compiled_for_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], interpreted: bool, early: bool
) -> None:
    monkeypatch.setattr(early_launch.device, "capability", lambda: capability)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", interpreted)
    assert early_launch.launches_early() == early
