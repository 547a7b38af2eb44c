"""The contract's clauses about weights: the route of INT4 ones, and nothing of their size made."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.weight_sized import LARGE
from support.graph_toy import Body, Programs, Toy, ToyModel, check_with, trace, writer

SMALL_M = torch.ops.eagle_aot.int4_small_m.default
LARGE_M = torch.ops.eagle_aot.int4_large_m.default


def with_target(name: str, function: Callable[[ToyModel, Tensor], Tensor]) -> Body:
    """What the method must do, and `function` of the target and the rows [T, 4]."""

    def body(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
        return writer(name)(toy, x, input_pos) + function(toy.target, x).sum()

    return body


def with_draft(name: str, function: Callable[[ToyModel, Tensor], Tensor]) -> Body:
    """As `with_target`, of the head's weights."""

    def body(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
        return writer(name)(toy, x, input_pos) + function(toy.draft, x).sum()

    return body


def int4(model: ToyModel, x: Tensor) -> Tensor:
    return model.int4(model.int4_rows(x))


def small_m(model: ToyModel, x: Tensor) -> Tensor:
    weight = model.int4
    return SMALL_M(model.int4_rows(x), weight.codes, weight.scales, None, 6, 1, "")


def large_m(model: ToyModel, x: Tensor) -> Tensor:
    weight = model.int4
    return LARGE_M(model.int4_rows(x), weight.codes, weight.scales, None, 6, "")


def unpacked(model: ToyModel, x: Tensor) -> Tensor:
    return model.unpacked(model.int4_rows(x))


def test_each_method_on_its_side_of_the_dispatch_passes(good: Programs) -> None:
    both = {name: trace(name, with_target(name, int4)) for name in ("prefill", "target_verify")}
    check_with(good, **both)
    targets = {n: [node.target for node in p.graph.nodes] for n, p in both.items()}
    assert SMALL_M in targets["target_verify"] and LARGE_M not in targets["target_verify"]
    assert LARGE_M in targets["prefill"] and SMALL_M not in targets["prefill"]


@pytest.mark.parametrize("name", ["prefill", "target_verify", "draft_decode"])
@pytest.mark.parametrize("function", [unpacked, lambda m, x: large_m(m, x) + unpacked(m, x)])
def test_a_weight_that_is_not_packed_is_refused(
    good: Programs, name: str, function: Callable[[ToyModel, Tensor], Tensor]
) -> None:
    program = trace(name, with_target(name, function))
    message = rf"{name}: INT4 weight target\.unpacked\.qdata is not packed"
    with pytest.raises(ExportError, match=message):
        check_with(good, **{name: program})


@pytest.mark.parametrize("function", [large_m, lambda m, x: int4(m, x) + large_m(m, x)])
def test_a_verify_through_the_many_row_kernel_is_refused(
    good: Programs, function: Callable[[ToyModel, Tensor], Tensor]
) -> None:
    verify = trace("target_verify", with_target("target_verify", function))
    message = (
        r"target_verify: INT4 weight target\.int4\.codes must be read by "
        r"eagle_aot::int4_small_m for few rows, but eagle_aot\.int4_large_m"
    )
    with pytest.raises(ExportError, match=message):
        check_with(good, target_verify=verify)


@pytest.mark.parametrize("name", ["prefill", "target_verify"])
def test_a_weight_that_is_read_as_something_else_is_refused(good: Programs, name: str) -> None:
    def confused(model: ToyModel, x: Tensor) -> Tensor:
        weight = model.int4
        scales = weight.scales + weight.codes.sum()
        operator = (LARGE_M, 6) if name == "prefill" else (SMALL_M, 6, 1)
        return operator[0](model.int4_rows(x), weight.codes, scales, None, *operator[1:], "")

    program = trace(name, with_target(name, confused))
    with pytest.raises(ExportError, match=r"but aten\.sum\.default takes it at"):
        check_with(good, **{name: program})


def test_codes_in_the_place_of_another_argument_are_refused(good: Programs) -> None:
    def swapped(model: ToyModel, x: Tensor) -> Tensor:
        weight = model.int4
        return SMALL_M(model.int4_rows(x), weight.scales, weight.codes, None, 6, 1, "")

    verify = trace("target_verify", with_target("target_verify", swapped))
    with pytest.raises(ExportError, match=r"but eagle_aot\.int4_small_m\.default takes it at"):
        check_with(good, target_verify=verify)


def test_a_prefill_through_the_few_row_kernel_is_refused(good: Programs) -> None:
    prefill = trace("prefill", with_target("prefill", lambda m, x: small_m(m, x[::2])))
    message = (
        r"prefill: INT4 weight target\.int4\.codes must be read by eagle_aot::int4_large_m "
        "for many rows"
    )
    with pytest.raises(ExportError, match=message):
        check_with(good, prefill=prefill)


def test_a_prefills_last_row_may_take_the_few_row_kernel(good: Programs) -> None:
    """As the logits do, whose head may be INT4."""
    last = trace("prefill", with_target("prefill", lambda m, x: int4(m, x[-1:])))
    assert SMALL_M in [node.target for node in last.graph.nodes]
    verify = trace("target_verify", with_target("target_verify", int4))
    check_with(good, prefill=last, target_verify=verify)


def test_the_heads_own_weights_take_the_few_row_kernel_for_any_number(good: Programs) -> None:
    check_with(good, draft_decode=trace("draft_decode", with_draft("draft_decode", small_m)))


@pytest.mark.parametrize(("owner", "body"), [
    ("draft", with_draft("draft_decode", large_m)),
    ("target", with_target("draft_decode", large_m)),
])  # fmt: skip
def test_a_head_through_the_many_row_kernel_is_refused(
    good: Programs, owner: str, body: Body
) -> None:
    """Whether the weights are the target's or the head's."""
    draft = trace("draft_decode", body)
    message = (
        rf"draft_decode: INT4 weight {owner}\.int4\.codes must be read by "
        r"eagle_aot::int4_small_m for few rows, but eagle_aot\.int4_large_m"
    )
    with pytest.raises(ExportError, match=message):
        check_with(good, draft_decode=draft)


def test_a_heads_weights_in_the_targets_methods_are_as_the_targets(good: Programs) -> None:
    """Such as `fc`."""
    both = {name: trace(name, with_draft(name, int4)) for name in ("prefill", "target_verify")}
    check_with(good, **both)
    prefill = trace("prefill", with_draft("prefill", small_m))
    message = r"prefill: INT4 weight draft\.int4\.codes must be read by eagle_aot::int4_large_m"
    with pytest.raises(ExportError, match=message):
        check_with(good, prefill=prefill)


MATERIALISED = [
    (lambda m, x: m.dense.weight.double(), r"aten\.to\.dtype at to\w* makes \[6, 4\]"),
    (lambda m, x: m.dense.weight.t().contiguous(), r"aten\.contiguous\.\w+ at \w+ makes \[4, 6\]"),
    (lambda m, x: m.dense.weight * 2, r"aten\.mul\.Tensor at mul\w* makes \[6, 4\]"),
    (lambda m, x: m.kv_cache.k.clone(), r"aten\.clone\.default at clone\w* makes \[32, 4\]"),
    (lambda m, x: x.new_ones(1024, 1024), r"aten\.new_ones\.default at \w+ makes \[1024, 1024\]"),
    (lambda m, x: m.scratch.unsqueeze(-1) * x.new_ones(LARGE // 128), r"makes \[32, 4, 8192\]"),
]


@pytest.mark.parametrize("name", ["target_verify", "draft_decode"])
@pytest.mark.parametrize(("function", "message"), MATERIALISED)
def test_materialising_a_weight_in_every_step_is_refused(
    good: Programs, name: str, function: Callable[[ToyModel, Tensor], Tensor], message: str
) -> None:
    program = trace(
        name, with_target(name, lambda m, x: function(m, x).sum() + m.dense.weight.sum())
    )
    with pytest.raises(ExportError, match=f"{name}: .*{message}.*the size of a weight"):
        check_with(good, **{name: program})


VIEWS_AND_ACTIVATIONS = [
    lambda m, x: m.dense.weight.t().unsqueeze(0).expand(2, -1, -1),
    lambda m, x: m.scratch.reshape(8, 16)[1:3].t(),
    lambda m, x: m.dense(x).reshape(-1, 6, 1) * x.new_ones(LARGE // 8),
    lambda m, x: torch.arange(2 * LARGE),
    lambda m, x: m.scratch.sum(dim=0) * m.dense.weight.sum(),
]


@pytest.mark.parametrize("name", ["target_verify", "draft_decode"])
@pytest.mark.parametrize("function", VIEWS_AND_ACTIVATIONS)
def test_views_and_activations_are_no_weights(
    good: Programs, name: str, function: Callable[[ToyModel, Tensor], Tensor]
) -> None:
    programs = {name: trace(name, with_target(name, function))}
    if name == "target_verify":
        programs["prefill"] = trace("prefill", with_target("prefill", function))
    check_with(good, **programs)


def test_prefill_may_materialise_a_weight(good: Programs) -> None:
    double = with_target("prefill", lambda m, x: m.dense.weight.double())
    plain = with_target("target_verify", lambda m, x: m.dense.weight)
    check_with(good, prefill=trace("prefill", double), target_verify=trace("target_verify", plain))
