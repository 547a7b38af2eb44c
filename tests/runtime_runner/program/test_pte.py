"""Reading `.pte` files that ExecuTorch wrote, and refusing damaged ones in one line."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchProgramManager, schema, to_edge
from executorch.runtime import Runtime
from hypothesis import given, settings

from eagle_aot.artifact import PROGRAM, WEIGHTS
from eagle_aot.runtime_runner.program.pte import Program, TensorData, check_caches, check_weights
from support.files.cuda import (
    Edit,
    Files,
    Method,
    constant_plan,
    damaged,
    delegate,
    edits,
    entry,
    orders,
    refusal,
    refusal_of_bytes,
    replaced,
    sample_files,
    sampled_lengths,
)

CONSTANTS: dict[str, Any] = {
    "get_zero": 0,
    "get_large": -(2**62),
    "get_true": True,
    "get_false": False,
    "get_layers": [2, 4, 5, 2],
}


class Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def lowered(partitioner: Any = None) -> ExecutorchProgramManager:
    exported = torch.export.export(Sum(), (torch.ones(2, 3),))
    edge = to_edge(exported, constant_methods=CONSTANTS)
    return (edge.to_backend(partitioner) if partitioner else edge).to_executorch()


@pytest.fixture(scope="module")
def portable() -> bytes:
    return lowered().buffer


@pytest.fixture(scope="module")
def whole() -> bytes:
    return sample_files().program()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program") / PROGRAM


def read(path: Path, data: bytes) -> Program:
    path.write_bytes(data)
    return Program.open(path)


def refused(path: Path) -> str | None:
    """Return the refusal to open a file; a file that is opened must not be refused later."""
    opened: list[Program] = []
    line = refusal(lambda: opened.append(Program.open(path)), path)
    for program in opened:
        for method in program.methods.values():
            assert len(program.named_data(method.library_key)) <= path.stat().st_size
    return line


why = partial(refusal_of_bytes, refused)


def edited(edit: Callable[[schema.ExecutionPlan], None], **parts: Any) -> bytes:
    """A program whose one method was changed before it was written."""

    def edit_first(program: schema.Program) -> None:
        edit(program.execution_plan[0])

    return Files([Method(**parts)], edit=edit_first).program()


def test_methods_read_back(path: Path) -> None:
    files = sample_files()
    program = read(path, files.program())
    assert program.path == path
    assert list(program.methods) == [method.name for method in files.methods]
    for method in files.methods:
        found = program.methods[method.name]
        assert (found.name, found.library_key) == (method.name, method.library_key)
        assert program.named_data(method.library_key) == method.library
        assert [w.fqn for w in found.weights] == [e.fqn for e in method.entries]
        assert (found.input_order, found.output_order) == (method.input_order, method.output_order)
    assert program.constants == files.constants


@pytest.mark.parametrize("input_order", orders(3))
@pytest.mark.parametrize("output_order", orders(2))
def test_every_order_of_inputs_and_outputs(
    path: Path, input_order: tuple[int, ...], output_order: tuple[int, ...]
) -> None:
    method = Method(input_order=input_order, output_order=output_order)
    found = read(path, Files([method]).program()).methods["forward"]
    assert (found.input_order, found.output_order) == (input_order, output_order)


@pytest.mark.parametrize("input_order", [(), (1,), (2, 0)])
def test_a_library_may_ignore_inputs(path: Path, input_order: tuple[int, ...]) -> None:
    found = read(path, Files([Method(input_order=input_order)]).program()).methods["forward"]
    assert found.input_order == input_order


def test_constants_are_what_the_official_runtime_returns(path: Path, portable: bytes) -> None:
    program = read(path, portable)
    assert not program.methods
    official = Runtime.get().load_program(path)
    returned = {name: list(official.load_method(name).execute([])) for name in CONSTANTS}
    assert dict(program.constants) == returned
    for name, values in returned.items():
        assert [type(v) for v in program.constants[name]] == [type(v) for v in values]
    assert program.constants["get_layers"] == [2, 4, 5, 2]


def test_methods_of_other_backends_are_left_out(path: Path) -> None:
    data = lowered(XnnpackPartitioner()).buffer
    assert b"XnnpackBackend" in data
    program = read(path, data)
    assert not program.methods and list(program.constants) == list(CONSTANTS)


def test_lists_of_integers_are_flattened(path: Path) -> None:
    def edit(program: schema.Program) -> None:
        plan = constant_plan("get_list", [5, -6, schema.IntList([1, 0, 1]), 7])
        plan.outputs = [2, 3]
        program.execution_plan.append(plan)

    assert read(path, Files(edit=edit).program()).constants == {"get_list": [-6, 5, -6, 7]}


@pytest.mark.parametrize(
    "value", [schema.Null(), 0.5, "Ada", schema.DoubleList([0.5]), schema.BoolList([True])]
)
def test_constants_of_unsupported_types_are_left_out(path: Path, value: Any) -> None:
    files = Files(constants={"get_other": [1, value], "get_one": [1]})
    assert read(path, files.program()).constants == {"get_one": [1]}


def test_a_method_that_takes_inputs_is_no_constant(path: Path) -> None:
    def edit(program: schema.Program) -> None:
        plan = constant_plan("get_first", [1, 2])
        plan.inputs, plan.outputs = [1], [0]
        program.execution_plan.append(plan)

    assert read(path, Files(edit=edit).program()).constants == {}


def test_files_that_are_no_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / PROGRAM
    missing = f"{path}: missing: export again"
    assert refused(path) == missing
    path.mkdir()
    assert refused(path) == missing
    path.rmdir()
    os.mkfifo(path)  # to open it would be to wait for a writer
    assert refused(path) == missing
    path.unlink()
    assert why(path, b"").startswith("damaged (")


def test_every_truncation_is_refused(path: Path) -> None:
    data = sample_files().program()
    read(path, data)
    for length in sampled_lengths(len(data)):
        why(path, data[:length])


@pytest.mark.parametrize(("old", "new", "message"), [
    (b"ET12", b"ET13", "not a ET12 file (it begins with b'ET13')"),
    (b"ET12", b"FT01", "not a ET12 file"),
    (b"ETCUDAFQN3", b"ETCUDAFQN4", "of another version of ExecuTorch"),
    (b"draft_decode", b"draft_dec\xffde", "damaged ('utf-8' codec can't decode"),
])  # fmt: skip
def test_changed_marks_and_names(path: Path, old: bytes, new: bytes, message: str) -> None:
    data = Files([Method("draft_decode", [entry("w", torch.ones(2))])]).program()
    assert message in why(path, replaced(data, old, new))


def test_a_newer_schema_is_refused(path: Path) -> None:
    def edit(program: schema.Program) -> None:
        program.version = 1

    message = why(path, Files([Method()], edit=edit).program())
    assert message.startswith("schema version 1, this runner reads 0")


def test_a_library_that_is_not_there_is_refused(path: Path) -> None:
    other = Method("other", library=b"other").library_key
    payload = Method().payload.replace(Method().library_key.encode(), other.encode())

    def edit(program: schema.Program) -> None:
        program.backend_delegate_data[0].data = payload

    message = why(path, Files([Method()], edit=edit).program())
    assert message.startswith(f"holds no blob named '{other}'")


KERNEL = schema.Instruction(schema.KernelCall(0, [1]))
SECOND_CALL = schema.Instruction(schema.DelegateCall(1, [1]))


def add(instruction: schema.Instruction) -> Callable[[schema.ExecutionPlan], None]:
    def edit(plan: schema.ExecutionPlan) -> None:
        plan.delegates.append(delegate("XnnpackBackend", 0))
        plan.chains[0].instructions.append(instruction)

    return edit


@pytest.mark.parametrize("edit", [
    add(KERNEL),
    add(SECOND_CALL),
    lambda plan: plan.chains.append(plan.chains[0]),
    lambda plan: plan.chains.clear(),
    lambda plan: plan.chains[0].instructions.clear(),
    lambda plan: plan.delegates.append(delegate("XnnpackBackend", 0)),
    lambda plan: plan.delegates.insert(0, delegate("XnnpackBackend", 0)),
])  # fmt: skip
def test_a_method_that_is_more_than_its_call_is_refused(
    path: Path, edit: Callable[[schema.ExecutionPlan], None]
) -> None:
    assert why(path, edited(edit)).startswith("method 'forward' is not one call of CudaBackend")


@pytest.mark.parametrize("instruction", [
    schema.KernelCall(0, [1]), schema.MoveCall(0, 1), schema.FreeCall(0),
    schema.JumpFalseCall(0, 1),
])  # fmt: skip
def test_instructions_outside_the_backend_are_refused(path: Path, instruction: Any) -> None:
    def edit(plan: schema.ExecutionPlan) -> None:
        plan.chains[0].instructions = [schema.Instruction(instruction)]

    assert why(path, edited(edit)).startswith("method 'forward' computes outside CudaBackend")


# Values: 0 an integer, 1 and 2 what the call makes, 5, 4 and 3 the inputs.
@pytest.mark.parametrize(("arguments", "outputs"), [
    ([5, 4, 3, 1, 2], [1]), ([5, 4, 3, 1], [1, 2]), ([5, 4, 1, 3, 2], [1, 2]),
    ([1, 2, 5, 4, 3], [1, 2]), ([5, 4, 1, 2], [1, 3]), ([0, 5, 4, 3, 1, 2], [1, 2]), ([1], [1, 2]),
])  # fmt: skip
def test_arguments_that_are_no_inputs_then_outputs(
    path: Path, arguments: list[int], outputs: list[int]
) -> None:
    def edit(plan: schema.ExecutionPlan) -> None:
        plan.inputs, plan.outputs = [5, 4, 3], outputs
        plan.chains[0].instructions[0].instr_args.args = arguments

    assert "hands CudaBackend other values" in why(path, edited(edit))


def test_a_payload_that_lies_elsewhere_is_refused(path: Path) -> None:
    def edit(program: schema.Program) -> None:
        place = schema.BackendDelegateDataReference(schema.DataLocation.SEGMENT, 9)
        program.execution_plan[0].delegates[0].processed = place

    assert "stores its weight table inline" in why(path, Files([Method()], inline=True).program())
    assert "list index" in why(path, Files([Method()], inline=True, edit=edit).program())


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pair")


def mismatch(directory: Path, files: Files) -> str | None:
    """What check_weights says of two files that are sound by themselves."""
    files.write(directory)
    program = Program.open(directory / PROGRAM)
    data = TensorData.open(directory / WEIGHTS)
    paths = directory / PROGRAM, directory / WEIGHTS
    return refusal(lambda: check_weights(program, data), *paths)


def test_files_that_belong_together(pair: Path) -> None:
    assert mismatch(pair, sample_files()) is None


def test_storages_that_are_missing_or_of_another_length(pair: Path) -> None:
    files = sample_files()
    key = files.methods[0].entries[0].storage_key
    missing = {k: t for k, t in files.weights.items() if k != key}
    line = mismatch(pair, Files(files.methods, missing))
    assert line == f"{pair / WEIGHTS}: holds no blob named '{key}': export again"
    line = mismatch(pair, Files(files.methods, {**files.weights, key: torch.zeros(25)}))
    assert line == (
        f"{pair / WEIGHTS}: '{key}' has 100 bytes, {PROGRAM} expects 96: export again"
    )  # fmt: skip


def test_caches_that_are_no_weights_of_the_program(path: Path, whole: bytes) -> None:
    program = read(path, whole)
    check_caches(program, ["draft.kv_cache.k", "target.kv_cache.v"])
    line = refusal(lambda: check_caches(program, ["draft.kv_cache.k", "draft.kv_cache.v"]), path)
    assert line == f"{path}: has no cache 'draft.kv_cache.v': export again"


@settings(max_examples=500, deadline=None)
@given(damage=edits())
def test_any_damage_is_read_or_refused(path: Path, whole: bytes, damage: list[Edit]) -> None:
    path.write_bytes(damaged(whole, whole[::-1], damage))
    refused(path)
