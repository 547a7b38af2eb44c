"""Every clause of the graph contract, with a program that breaks it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.export import Dim, ExportedProgram

from eagle_aot.artifact import METHODS
from eagle_aot.errors import ExportError
from eagle_aot.export import ExportOptions, Source, run_check
from eagle_aot.export.graph_checks import check_graphs, mutated_buffers
from eagle_aot.export.verify_window import MethodLengths
from eagle_aot.triton_kernels.int4_gemm import matvec_max_m

LENGTHS = MethodLengths(8, 9, 16)
RANGES = {"prefill": (9, 16), "target_verify": (1, 8), "draft_decode": (1, 16)}
Programs = dict[str, ExportedProgram]
Body = Callable[["Toy", Tensor, Tensor], Tensor]


class ToyCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(32, 4))


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kv_cache = ToyCache()
        self.register_buffer("scratch", torch.zeros(32, 4))


class Toy(nn.Module):
    """Two models with a cache each; `body` decides what is read and written."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.target, self.draft = ToyModel(), ToyModel()
        if body in (two_caches, one_of_two_caches):
            self.target.other = ToyModel()
        self.body = body

    def forward(self, x: Tensor, input_pos: Tensor) -> Tensor:
        return self.body(self, x, input_pos)


def write_target(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return x + toy.target.kv_cache.k.index_copy_(0, input_pos, x).sum()


def write_draft(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return x + toy.draft.kv_cache.k.index_copy_(0, input_pos, x).sum()


def trace(name: str, body: Body, bounds: tuple[int, int] | None = None) -> ExportedProgram:
    low, high = bounds or RANGES[name]
    inputs = torch.ones(high, 4), torch.arange(high)
    rows = Dim("rows", min=low, max=high)
    shapes = ({0: rows}, {0: rows})
    return torch.export.export(Toy(body), inputs, dynamic_shapes=shapes, strict=False)


@pytest.fixture(scope="module")
def good() -> Programs:
    bodies = {"prefill": write_target, "target_verify": write_target, "draft_decode": write_draft}
    return {name: trace(name, body) for name, body in bodies.items()}


def test_programs_that_keep_the_contract_pass(good: Programs) -> None:
    check_graphs(good, LENGTHS)
    assert mutated_buffers(good["prefill"]) == {"target.kv_cache.k"}
    assert mutated_buffers(good["draft_decode"]) == {"draft.kv_cache.k"}


def chunked(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return write_target(toy, x.chunk(2, dim=1)[0].repeat(1, 2), input_pos)


def split(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return write_target(toy, x.split(2, dim=1)[0].repeat(1, 2), input_pos)


def split_with_sizes(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return write_target(toy, x.split([1, 3], dim=1)[0].repeat(1, 4), input_pos)


def write_scratch_too(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    toy.target.scratch.index_copy_(0, input_pos, x)
    return write_target(toy, x, input_pos)


def write_draft_too(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return write_target(toy, write_draft(toy, x, input_pos), input_pos)


def write_nothing(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return x + toy.target.kv_cache.k.sum() + input_pos.sum()


def write_input(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return write_target(toy, x.add_(1), input_pos)


def two_caches(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    toy.target.other.kv_cache.k.index_copy_(0, input_pos, x)
    return write_target(toy, x, input_pos)


def one_of_two_caches(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return write_target(toy, x, input_pos)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (chunked, "target_verify: operator chunk at"),
        (split, "target_verify: operator split at"),
        (split_with_sizes, "target_verify: operator split_with_sizes at"),
        (write_scratch_too, r"other buffers than its caches: \['target\.scratch'\]"),
        (write_draft_too, r"other buffers than its caches: \['draft\.kv_cache\.k'\]"),
        (write_nothing, r"other buffers than its caches: \['target\.kv_cache\.k'\]"),
        (write_input, r"other buffers than its caches: \['x'\]"),
        (one_of_two_caches, r"other buffers than its caches: \['target\.other\.kv_cache\.k'\]"),
        (write_draft, r"target_verify: writes other buffers than its caches: \['draft"),
    ],
)
def test_an_operator_or_a_write_outside_the_contract_is_refused(
    good: Programs, body: Body, message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        check_graphs(good | {"target_verify": trace("target_verify", body)}, LENGTHS)


def test_the_draft_may_not_write_the_targets_cache(good: Programs) -> None:
    with pytest.raises(ExportError, match=r"draft_decode: writes other .*'target\.kv_cache\.k'"):
        check_graphs(good | {"draft_decode": trace("draft_decode", write_target)}, LENGTHS)


def test_a_method_without_any_cache_is_refused(good: Programs) -> None:
    class Stateless(nn.Module):
        def forward(self, x: Tensor, input_pos: Tensor) -> Tensor:
            return x + input_pos.unsqueeze(-1)

    rows = Dim("rows", min=1, max=16)
    inputs = torch.ones(16, 4), torch.arange(16)
    shapes = ({0: rows}, {0: rows})
    stateless = torch.export.export(Stateless(), inputs, dynamic_shapes=shapes, strict=False)
    with pytest.raises(ExportError, match="draft_decode: writes other buffers than its caches"):
        check_graphs(good | {"draft_decode": stateless}, LENGTHS)


def test_every_target_cache_of_one_method_is_one_of_the_other(good: Programs) -> None:
    with pytest.raises(ExportError, match="prefill and target_verify write different caches"):
        check_graphs(good | {"prefill": trace("prefill", two_caches)}, LENGTHS)


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("prefill", (8, 16)),
        ("prefill", (9, 15)),
        ("target_verify", (2, 8)),
        ("draft_decode", (1, 8)),
    ],
)
def test_a_length_other_than_the_published_one_is_refused(
    good: Programs, name: str, bounds: tuple[int, int]
) -> None:
    body = write_draft if name == "draft_decode" else write_target
    with pytest.raises(
        ExportError, match=rf"{name}: dynamic lengths .* expected \[\({RANGES[name][0]}"
    ):
        check_graphs(good | {name: trace(name, body, bounds)}, LENGTHS)


def test_a_static_length_is_refused(good: Programs) -> None:
    inputs = torch.ones(8, 4), torch.arange(8)
    static = torch.export.export(Toy(write_target), inputs, strict=False)
    with pytest.raises(ExportError, match=r"target_verify: dynamic lengths \[\]"):
        check_graphs(good | {"target_verify": static}, LENGTHS)


def test_exactly_the_three_methods_in_their_order(good: Programs) -> None:
    for wrong in (
        {name: good[name] for name in METHODS[:2]},
        {name: good[name] for name in reversed(METHODS)},
        good | {"decode": good["prefill"]},
    ):
        with pytest.raises(ExportError, match="expected exactly"):
            check_graphs(wrong, LENGTHS)


def test_the_shipped_geometry_keeps_the_contract_without_being_materialised() -> None:
    before = matvec_max_m()
    source = Source.find("gemma4-tiny", None, None, "dummy")
    programs = run_check(source, ExportOptions(max_seq_len=64, max_prefill=24))
    assert tuple(programs) == METHODS and matvec_max_m() == before
    target_caches = {f"target.layers.{i}.self_attn.kv_cache.{n}" for i in range(6) for n in "kv"}
    assert mutated_buffers(programs["prefill"]) == target_caches
    assert mutated_buffers(programs["draft_decode"]) == {"draft.kv_cache.k", "draft.kv_cache.v"}
    for program in programs.values():
        assert all(isinstance(tensor, FakeTensor) for tensor in program.state_dict.values())
