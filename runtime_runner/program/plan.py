"""One method of a program: what a constant method returns, how a CUDA method calls its delegate."""

from dataclasses import dataclass
from typing import Any, NoReturn

from eagle_aot.runtime_runner.program.flatbuffer import Table, UnreadableError
from eagle_aot.runtime_runner.program.weight_table import Weight

BACKEND = "CudaBackend"
# Fields in schema/program.fbs, numbered in the order of their declaration.
NAME, VALUES, INPUTS, OUTPUTS, CHAINS, DELEGATES = 0, 2, 3, 4, 5, 7  # ExecutionPlan
INSTRUCTIONS = 2  # Chain
ARGUMENTS = 1  # DelegateCall
BACKEND_ID, PROCESSED = 0, 1  # BackendDelegate
UNION = 0  # EValue and Instruction
CONTENT = 0  # every kind of EValue
# Members of the unions InstructionArguments and KernelTypes.
DELEGATE_CALL = 2
INT, BOOL, INT_LIST = 2, 3, 7
NUMBERS = {INT: "q", BOOL: "?"}


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
    """An ExecutionPlan table; inputs and outputs are indices of values. Raises UnreadableError."""

    def __init__(self, table: Table) -> None:
        self.name = table.text(NAME)
        self._inputs = table.numbers(INPUTS, "i")
        self._outputs = table.numbers(OUTPUTS, "i")
        self._values = table.tables(VALUES)
        self._chains = [chain.tables(INSTRUCTIONS) for chain in table.tables(CHAINS)]
        self._delegates = table.tables(DELEGATES)

    def constants(self) -> list[Any] | None:
        """Return the numbers that a constant method returns, lists flattened.

        None for a method that computes, takes inputs or returns something else.
        """
        outputs = [self._constant(index) for index in self._outputs]
        if self._inputs or any(self._chains) or None in outputs:
            return None
        return [value for values in outputs for value in values or ()]

    def _constant(self, index: int) -> list[Any] | None:
        kind, value = self._values[index].union(UNION)
        if kind in NUMBERS:
            return [value.number(CONTENT, NUMBERS[kind])]
        if kind == INT_LIST:  # of indices: the numbers are values themselves
            items = (self._values[item].union(UNION)[1] for item in value.numbers(CONTENT, "q"))
            return [item.number(CONTENT, NUMBERS[INT]) for item in items]
        return None

    def uses_cuda(self) -> bool:
        """Return whether any part of the method runs in the CUDA backend."""
        return any(delegate.text(BACKEND_ID) == BACKEND for delegate in self._delegates)

    def cuda_call(self) -> tuple[Table, tuple[int, ...], tuple[int, ...]]:
        """Return the location of the one delegate's payload, and the orders as in CudaMethod."""
        if [len(chain) for chain in self._chains] != [1] or len(self._delegates) != 1:
            self._refuse(f"is not one call of {BACKEND}")
        kind, call = self._chains[0][0].union(UNION)
        if kind != DELEGATE_CALL:
            self._refuse(f"computes outside {BACKEND}")
        return self._delegates[0].table(PROCESSED), *self._orders(call.numbers(ARGUMENTS, "i"))

    def _orders(self, arguments: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Read both orders from the delegate's arguments: inputs (some may be left out), then all
        outputs."""
        count = len(arguments) - len(self._outputs)
        inputs, outputs = arguments[: max(count, 0)], arguments[max(count, 0) :]
        if not set(inputs) <= set(self._inputs) or sorted(outputs) != sorted(self._outputs):
            self._refuse(f"hands {BACKEND} other values than its inputs, then its outputs")
        order = tuple(self._inputs.index(value) for value in inputs)
        return order, tuple(outputs.index(value) for value in self._outputs)

    def _refuse(self, what: str) -> NoReturn:
        raise UnreadableError(f"method {self.name!r} {what}")
