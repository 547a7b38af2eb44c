"""The profile of one `target_verify`: everything but the GPU."""

import io
import json

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from torch.export import ExportedProgram

from eagle_aot.artifact import TARGET_VERIFY, Stage
from eagle_aot.common.errors import SettingError
from eagle_aot.common.progress import Progress
from eagle_aot.export import ExportOptions, run_check
from eagle_aot.export.lowering.backend import CUDA
from eagle_aot.lab.bench.kernels.verify.kernels import (
    ATTENTION,
    CLASSES,
    DENSE,
    INT4,
    REST,
    class_of,
    shares,
    summed,
)
from eagle_aot.lab.bench.kernels.verify.measure import Results, Verify, check_lengths
from eagle_aot.lab.bench.kernels.verify.program import dummy_source, export_options, narrowed
from eagle_aot.lab.bench.kernels.verify.report import report, to_json
from eagle_aot.lab.bench.results import Floor
from eagle_aot.lab.header import Header
from profile_verify import main


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("int4_small_m_kernel", INT4),
        ("_int4_gemm_packed_3", INT4),
        ("sdpa_splitk_kernel", ATTENTION),
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
    ],
)
def test_a_kernel_is_known_by_its_name(name: str, kind: str) -> None:
    assert class_of(name) == kind


LAUNCHES = [("int4_small_m_kernel", 30.0), ("int4_small_m_kernel", 10.0), ("fill", 5.0)]


def test_launches_add_up_to_the_kernels_of_one_forward() -> None:
    first, second = summed([*LAUNCHES, *LAUNCHES], forwards=2)
    assert (first.name, first.launches, first.us, first.mean_us) == (
        "int4_small_m_kernel", 2.0, 40.0, 20.0
    )  # fmt: skip
    assert (second.name, second.launches, second.us) == ("fill", 1.0, 5.0)


def test_shares_are_of_all_kernels() -> None:
    launches = [*LAUNCHES, ("sdpa_splitk", 35.0), ("triton_tem_fused_mm_1", 20.0)]
    found = shares(summed(launches, forwards=1))
    assert [part.name for part in found] == list(CLASSES)
    assert [part.us for part in found] == [40.0, 35.0, 20.0, 5.0]
    assert [part.launches for part in found] == [2.0, 1.0, 1.0, 1.0]
    assert [part.share for part in found] == pytest.approx([0.4, 0.35, 0.2, 0.05])
    assert [part.share for part in shares([])] == [0.0] * 4


def sample() -> tuple[Header, Results, list[Stage]]:
    kernels = summed([*LAUNCHES, ("void f<int[4]>()", 15.0)], forwards=1)
    verify = Verify(
        context=8192, rows=4, graph_us=75.0, floor=Floor(bytes=10**9, ms=0.03), kernels=kernels
    )
    head = Header(
        date="2026-01-01", device="a GPU", versions={"torch": "2"}, commit="abc",
        command="python x", subject="gemma4-tiny, dummy",
    )  # fmt: skip
    return head, Results(read_bandwidth=3e12, verifies=[verify]), [Stage("lower", 1.5, 2**30, 0)]


def test_gaps_and_the_floor_belong_to_the_graph() -> None:
    verify = sample()[1].verifies[0]
    assert (verify.kernels_us, verify.gaps_us, verify.to_floor) == (60.0, 15.0, 2.5)


def test_the_report_shows_all_of_it() -> None:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(*report(*sample()), sep="\n")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "T = 4 behind 8,192 tokens: 75 us, of which kernels 60 us, gaps 15 us" in text
    assert "floor 30 us (1.00 GB): 2.50 x floor" in text
    assert "66.7%" in text and "void f<int[4]>()" in text and "lower " in text


def test_json_holds_every_kernel() -> None:
    found = json.loads(json.dumps(to_json(*sample())))
    (verify,) = found["forwards"]
    assert verify["gaps_us"] == 15.0 and found["read_gb_per_second"] == 3000.0
    assert verify["kernels"][0] == {
        "name": "int4_small_m_kernel", "launches": 2.0, "us": 40.0, "class": INT4
    }  # fmt: skip
    assert sum(part["us"] for part in verify["classes"]) == verify["kernels_us"]


@pytest.mark.parametrize(
    ("rows", "contexts"), [((0,), ()), ((9,), ()), ((1,), (65,)), ((1,), (0,))]
)
def test_lengths_beyond_the_program_are_refused(
    rows: tuple[int, ...], contexts: tuple[int, ...]
) -> None:
    check_lengths((1, 8), (1, 64), max_window=8, max_seq_len=64)
    with pytest.raises(SettingError, match="takes 1 to"):
        check_lengths(rows, contexts, max_window=8, max_seq_len=64)


def test_a_choice_that_the_export_lacks_is_refused() -> None:
    options = export_options(64, "nonesuch", Progress())
    with pytest.raises(SettingError, match="--attention nonesuch"):
        run_check(dummy_source("gemma4-tiny", 3), options)


def nodes(program: ExportedProgram) -> list[str]:
    return [node.format_node() or node.name for node in program.graph.nodes]


def test_what_is_traced_is_the_method_of_an_artifact() -> None:
    source, options = dummy_source("gemma4-tiny", 3), ExportOptions(backend=CUDA, max_seq_len=96)
    whole = run_check(source, options)
    with narrowed():
        narrow = run_check(source, options)
    assert len(whole) == 4 and list(narrow) == [TARGET_VERIFY]
    assert nodes(narrow[TARGET_VERIFY]) == nodes(whole[TARGET_VERIFY])


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(main, ["--dummy-layers", "6"])
    assert done.exit_code == 1 and not done.stdout
    assert done.stderr == "Error: a profile needs an NVIDIA GPU, and this machine shows none\n"
