"""Products and norms between attentions become one operator in a graph, which computes the same."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eagle_aot.artifact import TARGET_VERIFY
from eagle_aot.export import run_check
from eagle_aot.export.graph_checks.nodes import argument_tensor
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.lowering.join_layers import (
    JOINED,
    NORM,
    PRODUCT,
    STORE,
    WITH_ATTENTION,
    join_layers,
)
from eagle_aot.export.methods import method_specs, trace_methods
from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.export.spec import CUDA
from eagle_aot.triton_kernels.int4_gemm.op import int4_small_m
from eagle_aot.triton_kernels.layer_products import op
from eagle_aot.triton_kernels.layer_products.macros import packed_shape
from eagle_aot.triton_kernels.residual_norm import residual_norm
from support.kernels.layer_cases import LayerCase
from support.pairs import dummy, load, short_dummy


def counts(program: torch.export.ExportedProgram) -> tuple[int, int, int]:
    """How many joined layers, with attention or without, products and norms a graph has."""
    targets = [node.target for node in program.graph.nodes]
    joined = targets.count(JOINED) + targets.count(WITH_ATTENTION)
    return joined, targets.count(PRODUCT), targets.count(NORM)


@pytest.mark.parametrize(
    ("target", "layers", "expected"),
    [
        (
            "gemma4-31b",
            7,
            (7, 1, 1),
        ),  # sliding and full layers; the first product and norm stay
        ("qwen3-32b", 2, (2, 1, 1)),
        ("qwen2.5-7b", 2, (2, 1, 1)),  # biases are added to the result
        ("llama-3.1-8b", 2, (2, 1, 1)),
        ("qwen3-4b", 2, (0, 8, 5)),  # gate and up are split
        ("qwen3-30b-a3b", 2, (0, 4, 5)),  # experts
    ],
)
def test_layers_of_published_targets(
    target: str, layers: int, expected: tuple[int, int, int]
) -> None:
    programs = run_check(dummy(target, drafter="ngram", dummy_layers=layers, backend="cuda"))
    before = counts(programs["prefill"])
    for program in programs.values():
        join_layers(program, 132)
        program.validate()
    assert counts(programs[TARGET_VERIFY]) == expected
    assert counts(programs["prefill"]) == before


@pytest.mark.parametrize("batch", [1, 8])
def test_attention_in_rings_is_joined_too(batch: int) -> None:
    """Of seven layers five slide, and the first has no layer before it."""
    arguments = dummy(
        "gemma4-31b", drafter="ngram", dummy_layers=7, backend="cuda", max_batch_size=batch
    )
    program = run_check(arguments)[TARGET_VERIFY]
    stores = len(program.graph.find_nodes(op="call_function", target=STORE))
    join_layers(program, 132)
    joined = program.graph.find_nodes(op="call_function", target=WITH_ATTENTION)
    left = len(program.graph.find_nodes(op="call_function", target=STORE))
    assert (stores, len(joined), left) == (7, 5, 2)
    joined += program.graph.find_nodes(op="call_function", target=JOINED)
    assert len({node.args[12] for node in joined}) == 1, "all are compiled alike"
    joined = program.graph.find_nodes(op="call_function", target=JOINED)
    assert len({node.meta["val"][0].dtype for node in joined}) == 1, "and torch sees one kernel"


def test_a_table_in_int4_is_the_last_layers_next_product() -> None:
    arguments = dummy(
        "gemma4-31b", drafter="ngram", dummy_layers=2, backend="cuda", table_quant="int4"
    )
    program = run_check(arguments)[TARGET_VERIFY]
    join_layers(program, 132)
    assert counts(program)[0] == 2
    (last,) = program.graph.find_nodes(op="call_function", target=JOINED)
    tiles = argument_tensor(last.args[3][3]).shape[0]
    assert packed_shape(tiles, 42, 1) >> 1 & 0x1FFF == tiles == 2048


@pytest.mark.parametrize("attending", [False, True])
@pytest.mark.parametrize(("drafter", "batch"), [("ngram", 1), ("ngram", 2), ("eagle3", 1)])
def test_a_step_computes_the_same(
    drafter: str, batch: int, attending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter reads the streams of three layers, which are results of a joined operator."""
    monkeypatch.setattr(op, "LEAST_WIDTH", 1)
    monkeypatch.setattr("eagle_aot.export.lowering.join_layers.attends", lambda *_: attending)
    lengths = method_lengths(128, 256, 64, batch)
    pair = pack_int4(load(short_dummy(drafter=drafter), torch.bfloat16, 256, batch).pair, 2)
    methods = {TARGET_VERIFY: method_specs(pair, lengths, True)[TARGET_VERIFY]}
    step: list[Any] = [example for example, _ in methods[TARGET_VERIFY].inputs.values()]
    program = trace_methods(methods, batch, CUDA)[TARGET_VERIFY]
    expected = program.module()(*step)
    join_layers(program, 2)
    assert counts(program)[0] > 0
    joined = program.graph.find_nodes(op="call_function", target=WITH_ATTENTION)
    assert bool(joined) is attending
    for found, wanted in zip(program.module()(*step), expected, strict=True):
        assert torch.equal(found, wanted)


CASE = LayerCase(256, 384, 512, 768)
ROWS = torch.export.Dim("rows", min=1, max=40)


class Between(nn.Module):
    """Products and norms between two attentions, which `broken` changes in one respect."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self.broken = broken
        codes, scales, self.splits, posts, following, scale, *_ = CASE.weights("cpu", 2)
        if broken == "groups of 64":
            scales[1] = scales[1][..., :256]
        if broken == "a norm in float32":
            following[0] = following[0].float()
        if broken == "the next product in groups of 64":
            scales[3] = scales[3][..., :256]
        self.zeros = [torch.zeros_like(scales[0]) if broken == "zero points" else None, None]
        self.posts = [None if broken == "one norm before a sum" else posts[0], posts[1]]
        self.scales = [scale if broken == "both sums scaled" else None, scale]
        self.weights = list(zip(codes, scales, strict=True))
        self.following = following

    def product(self, x: Tensor, at: int, zeros: Tensor | None, activation: str = "") -> Tensor:
        features = self.weights[at][0].shape[0] * 128
        last = features, self.splits[at], activation
        return int4_small_m(x, *self.weights[at], zeros, *last)

    def forward(self, attended: Tensor, stream: Tensor) -> list[Tensor]:
        eps = 1e-6, 1e-6
        parts = self.product(attended, 0, self.zeros[0])
        first = self.posts[0], self.scales[0], self.following[0]
        after, normed = residual_norm(parts, stream, *first, *eps)
        hidden = self.product(normed, 1, None, CASE.activation).flatten(0, 1)
        parts = self.product(hidden, 2, None)
        second = self.posts[1], self.scales[1], self.following[1]
        last, normed = residual_norm(parts, after, *second, *eps)
        results = [self.product(normed, 3, None), last]
        if self.broken == "hidden rows are read":
            results.append(hidden)
        if self.broken == "the sum between is read":
            results.append(after + 1)
        return results


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "a fixed row",
        "groups of 64",
        "zero points",
        "a norm in float32",
        "one norm before a sum",
        "both sums scaled",
        "hidden rows are read",
        "the sum between is read",
    ],
)
def test_what_the_kernel_does_not_compute_is_left_alone(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "LEAST_WIDTH", 1)
    shapes = (
        None if broken == "a fixed row" else {name: {1: ROWS} for name in ("attended", "stream")}
    )
    rows = CASE.rows(1 if broken == "a fixed row" else 3, "cpu")
    program = torch.export.export(Between(broken), rows, dynamic_shapes=shapes, strict=False)
    expected = program.module()(*rows)
    join_layers(program, 2)
    assert counts(program) == ((0, 4, 2) if broken else (1, 0, 0))
    for found, wanted in zip(program.module()(*rows), expected, strict=True):
        assert torch.equal(found, wanted)


def test_a_next_product_that_the_kernel_does_not_read_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(op, "LEAST_WIDTH", 1)
    shapes = {name: {1: ROWS} for name in ("attended", "stream")}
    rows = CASE.rows(3, "cpu")
    between = Between("the next product in groups of 64")
    program = torch.export.export(between, rows, dynamic_shapes=shapes, strict=False)
    expected = program.module()(*rows)
    join_layers(program, 2)
    assert counts(program) == (1, 1, 0)
    for found, wanted in zip(program.module()(*rows), expected, strict=True):
        assert torch.equal(found, wanted)
