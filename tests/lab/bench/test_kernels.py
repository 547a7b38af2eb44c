"""`eagle-bench --part kernels`: everything but the GPU."""

import io
import json

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from eagle_aot.lab.bench.kernels.cli import (
    ForwardProfile,
    kernels_table,
    main,
    shares_table,
    summary,
)
from eagle_aot.lab.bench.kernels.profile import (
    ATTENTION,
    CLASSES,
    DENSE,
    INT4,
    REST,
    class_of,
    shares,
    summed,
)
from eagle_aot.lab.bench.results import Floor


@pytest.mark.parametrize(("name", "kind"), [
    ("int4_small_m_kernel", INT4),
    ("_int4_gemm_packed_3", INT4),
    ("sdpa_splitk_kernel", ATTENTION),
    ("screen_kernel", DENSE),
    ("screen_table_kernel", DENSE),
    ("sdpa_wide_kernel", ATTENTION),
    ("rescore_kernel", DENSE),
    ("rescore_table_kernel", DENSE),
    ("whole_kernel", DENSE),
    ("_sdpa_reduce_splits", ATTENTION),
    ("triton_tem_fused_bmm_transpose_4", ATTENTION),
    ("triton_red_fused__softmax__to_copy_add_view_7", ATTENTION),
    ("triton_per_fused_add_prepare_softmax_online_9", ATTENTION),
    ("triton_poi_fused_bmm_clone_2", ATTENTION),
    ("void (anonymous namespace)::cunn_SoftMaxForward<4, float>", ATTENTION),
    ("triton_tem_fused_mm_12", DENSE),
    ("triton_tem_fused__to_copy_linear_mul_tanh_12", DENSE),
    ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", DENSE),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", DENSE),
    # Fused norms are named after what they read, too.
    ("triton_red_fused_add_int4_small_m_mean_mul_rsqrt_5", REST),
    ("triton_poi_fused__to_copy_linear_view_3", REST),
    ("triton_red_fused_argmax_mm_30", REST),
    ("triton_poi_fused_gelu_mul_8", REST),
    ("triton_poi_fused_index_copy_1", REST),
    ("Memcpy DtoD (Device -> Device)", REST),
    ("Memset (Device)", REST),
])  # fmt: skip
def test_a_kernel_is_known_by_its_name(name: str, kind: str) -> None:
    assert class_of(name) == kind


LAUNCHES = [("int4_small_m_kernel", 30.0), ("int4_small_m_kernel", 10.0), ("fill", 5.0)]


def test_launches_are_summed_into_the_kernels_of_one_forward() -> None:
    first, second = summed([*LAUNCHES, *LAUNCHES], forwards=2)
    assert (first.name, first.launches, first.us, first.mean_us) == (
        "int4_small_m_kernel", 2.0, 40.0, 20.0
    )  # fmt: skip
    assert (second.name, second.launches, second.us) == ("fill", 1.0, 5.0)


def test_shares_are_of_all_kernels() -> None:
    launches = [*LAUNCHES, ("sdpa_splitk", 35.0), ("triton_tem_fused_mm_1", 20.0)]
    parts = shares(summed(launches, forwards=1))
    assert [part.name for part in parts] == list(CLASSES)
    assert [part.us for part in parts] == [40.0, 35.0, 20.0, 5.0]
    assert [part.launches for part in parts] == [2.0, 1.0, 1.0, 1.0]
    assert [part.share for part in parts] == pytest.approx([0.4, 0.35, 0.2, 0.05])
    assert [part.share for part in shares([])] == [0.0] * 4


def profile() -> ForwardProfile:
    kernels = summed([*LAUNCHES, ("void f<int[4]>()", 15.0)], forwards=1)
    floor = Floor(bytes=10**9, ms=0.03)
    return ForwardProfile(context=8192, rows=4, graph_us=75.0, floor=floor, kernels=kernels)


def test_gaps_and_the_floor_are_of_the_graph() -> None:
    forward = profile()
    assert (forward.kernels_us, forward.gaps_us, forward.to_floor) == (60.0, 15.0, 2.5)


def test_report_shows_times_classes_and_kernels() -> None:
    console, forward = Console(file=io.StringIO(), width=200, highlight=False), profile()
    tables = shares_table(forward), kernels_table(forward.kernels)
    console.print(summary(forward), *tables, sep="\n")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "T = 4 at 8,192 tokens: 75 us: kernels 60 us, gaps 15 us" in text
    assert "floor 30 us (1.00 GB): 2.50 x floor" in text
    assert "66.7%" in text and "void f<int[4]>()" in text


def test_json_holds_every_kernel() -> None:
    forward = json.loads(json.dumps(profile().to_json()))
    assert forward["gaps_us"] == 15.0
    assert forward["kernels"][0] == {
        "name": "int4_small_m_kernel", "launches": 2.0, "us": 40.0, "class": INT4
    }  # fmt: skip
    assert sum(part["us"] for part in forward["classes"]) == forward["kernels_us"]


def test_without_a_gpu_the_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(main, ["artifact", "--rows", "6"])
    assert done.exit_code == 1 and not done.stdout
    assert done.stderr == "Error: a profile needs an NVIDIA GPU, and this machine shows none\n"
