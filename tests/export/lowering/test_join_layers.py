"""Products and norms between attentions become one operator in a graph, which computes the same."""

from typing import Any

import pytest
import torch

from eagle_aot.artifact import TARGET_VERIFY
from eagle_aot.export import run_check
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.lowering.join_layers import JOINED, NORM, PRODUCT, join_layers
from eagle_aot.export.methods import method_specs, trace_methods
from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.export.spec import CUDA
from eagle_aot.triton_kernels.layer_products import op
from support.pairs import dummy, load, short_dummy


def counts(program: torch.export.ExportedProgram) -> tuple[int, int, int]:
    """How many joined layers, products and norms a graph has."""
    targets = [node.target for node in program.graph.nodes]
    return targets.count(JOINED), targets.count(PRODUCT), targets.count(NORM)


@pytest.mark.parametrize(
    ("target", "layers", "expected"),
    [
        ("gemma4-31b", 7, (6, 4, 2)),  # sliding and full layers; the first and last product stay
        ("qwen3-32b", 2, (1, 4, 2)),
        ("qwen2.5-7b", 2, (1, 4, 2)),  # biases are added to the result
        ("llama-3.1-8b", 2, (0, 8, 4)),  # gate and up are split
        ("qwen3-30b-a3b", 2, (0, 4, 4)),  # experts
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


@pytest.mark.parametrize("drafter", ["ngram", "eagle3"])
def test_a_step_computes_the_same(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter reads the streams of three layers, which are results of a joined operator."""
    monkeypatch.setattr(op, "LEAST_WIDTH", 1)
    lengths = method_lengths(128, 256, 64, 1)
    pair = pack_int4(load(short_dummy(drafter=drafter), torch.bfloat16, 256, 1).pair, 2)
    methods = {TARGET_VERIFY: method_specs(pair, lengths)[TARGET_VERIFY]}
    step: list[Any] = [example for example, _ in methods[TARGET_VERIFY].inputs.values()]
    program = trace_methods(methods, 1, CUDA)[TARGET_VERIFY]
    expected = program.module()(*step)
    join_layers(program, 2)
    assert counts(program)[0] > 0
    for found, wanted in zip(program.module()(*step), expected, strict=True):
        assert torch.equal(found, wanted)
