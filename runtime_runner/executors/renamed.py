"""Methods of a program under other names than its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from eagle_aot.runtime_runner.executors import Call, Executor


class Renamed:
    """An executor for one of several drafters, which knows its methods by the names that they have
    where it drafts alone."""

    def __init__(self, executor: Executor, names: Mapping[str, str]) -> None:
        """`names` are the program's, by those that are used here."""
        self._executor, self._names = executor, names
        self.name, self.device = executor.name, executor.device

    def constants(self) -> Mapping[str, Sequence[Any]]:
        """The program's."""
        return self._executor.constants()

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """As the executor does."""
        return self._executor.run(self._names.get(method, method), *inputs)

    def repeat(self, step: Call) -> Call:
        """As the executor does."""
        return self._executor.repeat(step)
