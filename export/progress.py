"""What an export's stages cost, and what a person sees of them while they run."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from eagle_aot.host_memory import host_peak_bytes


@dataclass(frozen=True, slots=True)
class Stage:
    """Time, the peak of host memory up to its end, and the peak of GPU memory within it."""

    name: str
    seconds: float
    host_peak_bytes: int
    gpu_peak_bytes: int


class Progress:
    """Measures stages one after another.

    Writes to stderr, and only where that is a terminal.
    """

    def __init__(self) -> None:
        self.console = Console(file=sys.stderr)  # this one, whoever redirects it later
        self.stages: list[Stage] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """One stage of the export."""
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        with self._shown(name):
            yield
        gpu_peak = torch.cuda.max_memory_allocated() if on_gpu else 0
        stage = Stage(name, time.perf_counter() - start, host_peak_bytes(), gpu_peak)
        self.stages.append(stage)
        if self.console.is_terminal:
            self.console.print(line(stage))

    @contextmanager
    def _shown(self, name: str) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Bar(*columns, console=self.console, transient=True) as bar:
            bar.add_task(name, total=None)
            yield


def line(stage: Stage) -> str:
    """A stage as one line of a table."""
    text = f"{stage.name:<20} {stage.seconds:7.1f} s   host peak {gib(stage.host_peak_bytes)}"
    return text + (f"   GPU peak {gib(stage.gpu_peak_bytes)}" if stage.gpu_peak_bytes else "")


def gib(count: int) -> str:
    """Bytes as GiB."""
    return f"{count / 2**30:5.2f} GiB"
