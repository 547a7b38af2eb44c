"""The experts' kernels without a GPU, compiled for one."""

import re
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from eagle_aot.triton_kernels.device import H100
from eagle_aot.triton_kernels.int4_experts import few_rows, many_rows
from support.kernels.compiled import empty, experts_weight, launches


def experts_at(rows: int, group: int, few: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compile a first product of Gemma 4 26B-A4B for an H100."""
    codes, scales = experts_weight(11, 22, group)
    x, ids = empty(rows, 2816), empty(rows, 8, dtype=torch.int64)
    order = empty(8 * rows, dtype=torch.int32), empty(129, dtype=torch.int32)
    kernel, sorted_ = (few_rows, ()) if few else (many_rows, order)
    rest = None, codes, scales, None, 1408, ""
    (call,) = launches(monkeypatch, kernel, lambda: kernel.launch(x, ids, *sorted_, *rest), H100)
    return call.compiled(H100)


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize(("rows", "few"), [(8, True), (16, True), (64, True), (512, False)])
def test_weights_are_prefetched_and_multiplied_as_they_lie(
    rows: int, few: bool, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads exchange no weight; the innermost loop has copies to shared memory and no load."""
    program = experts_at(rows, group, few, monkeypatch)
    graph = program.asm["ttgir"]
    loop = graph[graph.rindex("scf.for") :]
    loop = loop[: loop.index("scf.yield")]
    assert "ttg.async_copy_global_to_local" in loop and "tt.load" not in loop
    assert "ttg.convert_layout" not in re.sub(r".*xi1.*", "", loop)
    assert ("wgmma" in program.asm["ptx"]) == (rows > (16 if group == 32 else 8))  # by their width
