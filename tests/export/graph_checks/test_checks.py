"""The contract's clauses about methods, lengths and buffers, with a program that breaks each."""

import pytest
import torch
from torch import Tensor, nn

from eagle_aot.artifact import METHODS
from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks import mutated_buffers
from support.graph_toy import (
    RANGES,
    VOCAB,
    WIDTH,
    Body,
    Programs,
    Toy,
    ToyDraft,
    ToyVerify,
    check,
    good_programs,
    spec,
    trace,
    write_draft,
    write_target,
    writer,
)


def test_programs_that_keep_the_contract_pass(good: Programs) -> None:
    check(good)
    assert mutated_buffers(good["prefill"]) == {"target.kv_cache.k"}
    assert mutated_buffers(good["draft_decode"]) == {"draft.kv_cache.k"}


def write_scratch_too(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    toy.target.scratch.index_copy_(0, input_pos, x)
    return write_target(toy, x, input_pos)


def write_scratch_twice(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    toy.target.scratch.index_copy_(0, input_pos, x).index_copy_(0, input_pos, 2 * x)
    return write_target(toy, x, input_pos)


def write_twice(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    """As moves do, before rows are stored."""
    toy.target.kv_cache.k.index_copy_(0, input_pos, 2 * x)
    return write_target(toy, x, input_pos)


def test_a_cache_may_be_written_more_than_once(good: Programs) -> None:
    twice = trace("target_verify", write_twice)
    check(good | {"target_verify": twice})
    assert mutated_buffers(twice) == {"target.kv_cache.k"}


def write_draft_too(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return write_target(toy, write_draft(toy, x, input_pos), input_pos)


def write_nothing(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return x + toy.target.kv_cache.k.sum() + input_pos.sum()


def write_input(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return write_target(toy, x, input_pos.add_(1))


def two_caches(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    toy.target.other.kv_cache.k.index_copy_(0, input_pos, x)
    return write_target(toy, x, input_pos)


@pytest.mark.parametrize(("body", "message"), [
    (write_scratch_too, r"other buffers than its caches: \['target\.scratch'\]"),
    (write_scratch_twice, r"other buffers than its caches: \['target\.scratch'\]"),
    (write_draft_too, r"other buffers than its caches: \['draft\.kv_cache\.k'\]"),
    (write_nothing, r"other buffers than its caches: \['target\.kv_cache\.k'\]"),
    (write_input, r"other buffers than its caches: \['flatten_1'\]"),
    (write_draft, r"target_verify: writes other buffers than its caches: \['draft"),
])  # fmt: skip
def test_a_write_outside_the_contract_is_refused(good: Programs, body: Body, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        check(good | {"target_verify": trace("target_verify", body)})


def test_a_cache_that_is_not_written_is_refused(good: Programs) -> None:
    idle = trace("target_verify", write_target, caches=2)
    with pytest.raises(ExportError, match=r"its caches: \['target\.other\.kv_cache\.k'\]"):
        check(good | {"target_verify": idle}, target_verify=spec("target_verify", caches=2))


def test_the_draft_may_not_write_the_targets_cache(good: Programs) -> None:
    with pytest.raises(ExportError, match=r"draft_decode: writes other .*'target\.kv_cache\.k'"):
        check(good | {"draft_decode": trace("draft_decode", write_target)})


def test_a_method_without_any_cache_is_refused(good: Programs) -> None:
    class Stateless(ToyDraft):
        def __init__(self, *arguments: object) -> None:
            nn.Module.__init__(self)
            self.register_buffer("table", torch.ones(VOCAB, WIDTH))

        def body(self, _: nn.Module, x: Tensor, input_pos: Tensor) -> Tensor:
            return x + input_pos.unsqueeze(-1)

    stateless = trace("draft_decode", write_draft, kind=Stateless)
    with pytest.raises(ExportError, match="draft_decode: writes other buffers than its caches"):
        check(good | {"draft_decode": stateless})


def test_prefill_and_verify_write_the_same_caches(good: Programs) -> None:
    with pytest.raises(ExportError, match="prefill and target_verify write different caches"):
        prefill = trace("prefill", two_caches, caches=2)
        check(good | {"prefill": prefill}, prefill=spec("prefill", caches=2))


def read_scratch_too(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return write_target(toy, x + toy.target.scratch.sum(), input_pos)


def read_scratch_in_draft(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return write_draft(toy, x + toy.target.scratch.sum(), input_pos)


@pytest.mark.parametrize("name", ["prefill", "target_verify"])
def test_prefill_and_verify_use_the_same_weights(good: Programs, name: str) -> None:
    with pytest.raises(
        ExportError, match=r"prefill and target_verify use different .*\['target\.scratch'\]"
    ):
        check(good | {name: trace(name, read_scratch_too)})


def test_one_name_is_one_tensor_in_every_method(good: Programs) -> None:
    target = {name: trace(name, read_scratch_too) for name in ("prefill", "target_verify")}
    check(good | target)
    prefill = trace("prefill", read_scratch_too, dtype=torch.float64)
    message = r"prefill: target\.scratch is \(torch\.float32, .*and \(torch\.float64,"
    with pytest.raises(ExportError, match=f"target_verify and {message}"):
        check(good | target | {"prefill": prefill})
    draft = trace("draft_decode", read_scratch_in_draft, dtype=torch.float64)
    with pytest.raises(ExportError, match=r"target_verify and draft_decode: target\.scratch is"):
        check(good | target | {"draft_decode": draft})


@pytest.mark.parametrize(("name", "bounds"), [
    ("prefill", (8, 16)), ("prefill", (9, 15)), ("target_verify", (2, 8)),
    ("draft_decode", (1, 8)),
])  # fmt: skip
def test_a_length_other_than_the_published_one_is_refused(
    good: Programs, name: str, bounds: tuple[int, int]
) -> None:
    body = writer(name)
    with pytest.raises(
        ExportError, match=rf"{name}: dynamic lengths .* expected \[\({RANGES[name][0]}"
    ):
        check(good | {name: trace(name, body, bounds=bounds)})


def test_a_static_length_is_refused(good: Programs) -> None:
    inputs = tuple(example for example, _ in spec("target_verify").inputs.values())
    static = torch.export.export(ToyVerify(write_target), inputs, strict=False)
    with pytest.raises(ExportError, match=r"target_verify: dynamic lengths \[\]"):
        check(good | {"target_verify": static})


@pytest.fixture(scope="module")
def several() -> Programs:
    """Of up to three sequences."""
    return good_programs(batch=3)


def test_as_many_sequences_as_the_caches_hold_pass(several: Programs) -> None:
    check(several, batch=3)


@pytest.mark.parametrize("name", ["target_verify", "draft_decode"])
@pytest.mark.parametrize("batch", [1, 2])
def test_fewer_sequences_than_the_caches_hold_are_refused(
    several: Programs, name: str, batch: int
) -> None:
    low, high = RANGES[name]
    expected = rf"{name}: dynamic lengths .* expected \[\({low}, 3\), \({low}, {high}\)\]"
    with pytest.raises(ExportError, match=expected):
        check(several | {name: trace(name, writer(name), batch=batch)}, batch=3)


def test_a_batch_dimension_for_one_sequence_is_refused(good: Programs, several: Programs) -> None:
    with pytest.raises(ExportError, match=r"target_verify: dynamic lengths \[\(1, 3\), \(1, 8\)\]"):
        check(good | {"target_verify": several["target_verify"]})


def test_missing_and_reordered_methods_are_refused(good: Programs) -> None:
    for wrong in (
        {name: good[name] for name in METHODS[:2]},
        {name: good[name] for name in reversed(METHODS)},
        good | {"decode": good["prefill"]},
    ):
        with pytest.raises(ExportError, match="expected exactly"):
            check(wrong)
