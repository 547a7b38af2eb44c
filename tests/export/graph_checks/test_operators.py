"""The contract's clauses about operators, with a graph that breaks each, and against Inductor."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.operators import ALLOWED, STATEMENTS
from support.graph_toy import Programs, Toy, check_with, trace, write_target

Function = Callable[[Tensor], Tensor]


def refuse(good: Programs, function: Function, message: str) -> None:
    """`function` of the rows [T, 4], added to what target_verify computes."""

    def body(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
        return write_target(toy, x, input_pos) + function(x).sum()

    verify = trace("target_verify", body)
    with pytest.raises(ExportError, match=f"target_verify: {message}"):
        check_with(good, target_verify=verify)


@pytest.mark.parametrize(("function", "operator"), [
    (lambda x: x.split(2, dim=1)[0], "split.Tensor"),
    (lambda x: x.split([1, 3], dim=1)[0], "split_with_sizes.default"),
    (lambda x: x.chunk(2, dim=1)[0], "chunk.default"),
    (lambda x: x.unbind(dim=1)[0], "unbind.int"),
    (lambda x: x.sort(dim=-1).values, "sort.default"),
    (lambda x: x.topk(2, dim=-1).values, "topk.default"),
    (lambda x: x.cumsum(dim=-1), "cumsum.default"),
    (lambda x: torch.bucketize(x, x.new_ones(3)), "bucketize.Tensor"),
    (lambda x: torch.rand_like(x), "rand_like.default"),
    (lambda x: F.scaled_dot_product_attention(x, x, x), "scaled_dot_product_attention.default"),
    (lambda x: torch.einsum("ta,tb->ab", x, x), "einsum.default"),
    (lambda x: torch.linalg.inv(x.new_ones(3, 3)), "linalg_inv.default"),
    (lambda x: x.masked_scatter(x > 0, x), "masked_scatter.default"),
])  # fmt: skip
def test_an_operator_that_may_need_a_kernel_of_torch_is_refused(
    good: Programs, function: Function, operator: str
) -> None:
    refuse(good, function, rf"operator aten\.{operator} at .* is not known to lower")


def test_a_higher_order_operator_is_refused(good: Programs) -> None:
    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    refuse(good, branches, "operator cond at .* is not known to lower")


@pytest.mark.parametrize(("function", "operator", "problem"), [
    (lambda x: x.long() ** 2, "pow.Tensor_Scalar", "a power of integers"),
    (lambda x: x.float().view(torch.int32), "view.dtype", "a view of bits"),
    (lambda x: x.index_put((x > 0,), x.new_ones(())), "index_put.default", "that is a mask"),
    (lambda x: x.index_put_((x > 0,), x.new_ones(())), "index_put_.default", "that is a mask"),
    (
        lambda x: x.index_put((x[:, 0].long(),), x, accumulate=True),
        "index_put.default",
        "writes that accumulate",
    ),
])  # fmt: skip
def test_a_call_that_would_fall_back_is_refused(
    good: Programs, function: Function, operator: str, problem: str
) -> None:
    refuse(good, function, rf"operator aten\.{operator} at .*: .*{problem}")


@pytest.mark.parametrize(("function", "problem"), [
    (lambda x: x.long() @ x.long().t(), "int64$"),
    (lambda x: x.double().mm(x.double().t()), "float64$"),
    (lambda x: F.linear(x.int(), x.new_ones(5, 4, dtype=torch.int32)), "int32$"),
    (lambda x: x.expand(2, 2, -1, -1) @ x.t().expand(2, 2, -1, -1), "4 and 4 dimensions$"),
    (lambda x: x @ x.new_ones(4), "2 and 1 dimensions$"),
])  # fmt: skip
def test_a_product_without_a_gemm_is_refused(
    good: Programs, function: Function, problem: str
) -> None:
    refuse(good, function, f"operator .*: a product of {problem}")


def test_a_product_of_two_dtypes_is_refused(good: Programs) -> None:
    """Which torch does not trace, but a pass over the graph may make."""

    def body(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
        return write_target(toy, x, input_pos) + toy.target.dense(x).sum()

    mixed = trace("target_verify", body)
    (weight,) = (node for node in mixed.graph.nodes if node.name == "p_target_dense_weight")
    weight.meta["val"] = weight.meta["val"].bfloat16()
    with pytest.raises(ExportError, match=r"linear.*: a product of bfloat16 and float32$"):
        check_with(good, target_verify=mixed)


def item(x: Tensor) -> Tensor:
    return x * x[0, 0].item()


def checked_item(x: Tensor) -> Tensor:
    length = x[0, 0].long().item()
    torch._check(length > 0)
    return x * length


@pytest.mark.parametrize(("function", "problem"), [
    (item, r"guard aten\.(item|_local_scalar_dense)\.default at"),
    (checked_item, r"guard aten\.(item|_local_scalar_dense)\.default at"),
    (lambda x: torch._assert_async(x.sum() > 0) or x, r"guard aten\._assert_async\.\w+ at"),
    (lambda x: x.nonzero(), r"shape \['u0'\] at nonzero"),
    (lambda x: x[x > 0], r"shape \['u0'\] at"),
    (lambda x: x.masked_select(x > 0), r"shape \['u0'\] at masked_select"),
])  # fmt: skip
def test_data_dependence_is_refused(good: Programs, function: Function, problem: str) -> None:
    refuse(good, function, f"data-dependent {problem}")


def has_own_kernel(operator: torch._ops.OpOverload) -> bool:
    """Whether Inductor makes code for it, or breaks it into operators it makes code for."""
    from torch._inductor.decomposition import decompositions
    from torch._inductor.lowering import fallbacks, lowerings

    if operator._can_decompose() or operator in decompositions:
        return True
    return operator in lowerings and operator not in fallbacks


def traceable_overloads(name: str) -> list[torch._ops.OpOverload]:
    """Those that a graph may hold: not TorchScript's own, not of named dimensions or `out=`."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    overloads = [
        getattr(packet, overload) for overload in packet.overloads() if overload != "names"
    ]
    dispatched = [o for o in overloads if torch._C._dispatch_has_kernel(o.name())]
    return [o for o in dispatched if not any(a.is_out for a in o._schema.arguments)]


@pytest.mark.parametrize("name", sorted(ALLOWED - STATEMENTS))
def test_an_allowed_operator_has_a_lowering(name: str) -> None:
    overloads = traceable_overloads(name)
    assert overloads and all(has_own_kernel(operator) for operator in overloads)
