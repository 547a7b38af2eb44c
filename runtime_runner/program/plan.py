"""One method of a program: what a constant one returns, and how a CUDA one calls its delegate."""

from dataclasses import dataclass
from typing import Any, NoReturn

from eagle_aot.runtime_runner.program.flatbuffer import Table
from eagle_aot.runtime_runner.program.untrusted_file import shown
from eagle_aot.runtime_runner.program.weight_table import Weight

BACKEND = "CudaBackend"
# Fields in schema/program.fbs, numbered in the order of their declaration.
NAME, VALUES, INPUTS, OUTPUTS, CHAINS, DELEGATES = 0, 2, 3, 4, 5, 7  # ExecutionPlan
INSTRUCTIONS = 2  # Chain
DELEGATE_INDEX, ARGUMENTS = 0, 1  # DelegateCall
BACKEND_ID, PROCESSED = 0, 1  # BackendDelegate
UNION = 0  # EValue and Instruction
CONTENT = 0  # every kind of EValue
# Members of the unions InstructionArguments and KernelTypes.
DELEGATE_CALL = 2
INT, BOOL, DOUBLE, TENSOR, STRING, INT_LIST = 2, 3, 4, 5, 6, 7
NUMBERS = {INT: "q", BOOL: "?", DOUBLE: "d"}


@dataclass(frozen=True, slots=True)
class CudaMethod:
    """A method that is one call of an AOTInductor shared object.

    The object has an order of inputs and outputs of its own: its input i is the method's input
    `input_order[i]`, and the method's output j is its output `output_order[j]`.
    """

    name: str
    library_key: str  # its shared object in the program's named data
    weights: tuple[Weight, ...]
    input_order: tuple[int, ...]
    output_order: tuple[int, ...]


class Plan:
    """An ExecutionPlan table; inputs and outputs are indices of values. Raises ArtifactError."""

    def __init__(self, table: Table) -> None:
        self._data = table.data
        self.name = table.text(NAME)
        self._inputs = table.numbers(INPUTS, "i")
        self._outputs = table.numbers(OUTPUTS, "i")
        self._values = table.tables(VALUES)
        self._chains = [chain.tables(INSTRUCTIONS) for chain in table.tables(CHAINS)]
        self._delegates = table.tables(DELEGATES)

    def constants(self) -> list[Any] | None:
        """What the method returns without computing, lists flattened.

        None for a method that computes, takes inputs or returns tensors.
        """
        if self._inputs or any(map(len, self._chains)):
            return None
        values: list[Any] = []
        for index in self._outputs:
            constant = self._constant(index)
            if constant is None:
                return None
            values += constant
        return values

    def _constant(self, index: int) -> list[Any] | None:
        kind, value = self._value(index)
        if kind in NUMBERS:
            return [value.number(CONTENT, NUMBERS[kind])]
        if kind == STRING:
            return [value.text(CONTENT)]
        if kind == INT_LIST:  # of indices: the numbers are values themselves
            return [self._integer(item) for item in value.numbers(CONTENT, "q")]
        return None

    def _integer(self, index: int) -> int:
        kind, value = self._value(index)
        if kind != INT:
            self._refuse("lists a value that is no integer")
        number: int = value.number(CONTENT, NUMBERS[INT])
        return number

    def _value(self, index: int) -> tuple[int, Table]:
        return self._values.at(index, "value").union(UNION)

    def uses_cuda(self) -> bool:
        """Whether any part of the method runs in the CUDA backend."""
        return any(delegate.text(BACKEND_ID) == BACKEND for delegate in self._delegates)

    def cuda_call(self) -> tuple[Table, tuple[int, ...], tuple[int, ...]]:
        """Where the payload of a method's one delegate is, and the orders as in CudaMethod."""
        if [len(chain) for chain in self._chains] != [1] or len(self._delegates) != 1:
            self._refuse(f"is not one call of {BACKEND}")
        kind, call = next(iter(self._chains[0])).union(UNION)
        if kind != DELEGATE_CALL:
            self._refuse(f"computes outside {BACKEND}")
        delegate = self._delegates.at(call.number(DELEGATE_INDEX, "i"), "delegate")
        return delegate.table(PROCESSED), *self._orders(call.numbers(ARGUMENTS, "i"))

    def _orders(self, arguments: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The delegate's arguments are its inputs, then its outputs."""
        for index in (*self._inputs, *self._outputs, *arguments):
            if self._value(index)[0] != TENSOR:
                self._refuse("has an input or output that is no tensor")
        place = {value: i for i, value in enumerate(self._inputs)}
        count = next((i for i, v in enumerate(arguments) if v not in place), len(arguments))
        made = {value: i for i, value in enumerate(arguments[count:])}
        twice = len(place) < len(self._inputs) or len(set(self._outputs)) < len(self._outputs)
        if twice or count + len(made) < len(arguments):
            self._refuse("has an input or output twice")
        if made.keys() != set(self._outputs) or made.keys() & place.keys():
            self._refuse(f"hands {BACKEND} other values than its inputs, then its outputs")
        inputs = tuple(place[value] for value in arguments[:count])
        return inputs, tuple(made[value] for value in self._outputs)

    def _refuse(self, what: str) -> NoReturn:
        self._data.refuse(f"method {shown(self.name)} {what}")
