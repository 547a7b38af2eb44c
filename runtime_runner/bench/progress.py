"""What a person sees while the bench runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """A bar on stderr, which shows only where that is a terminal, and goes away in the end."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        self._bar = Bar(
            *columns, TimeElapsedColumn(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("loading", total=None)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def expect(self, steps: int) -> None:
        """How many steps there are."""
        self._bar.update(self._task, total=steps)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """One of them, which does `what`."""
        self._bar.update(self._task, description=what)
        yield
        self._bar.advance(self._task)
