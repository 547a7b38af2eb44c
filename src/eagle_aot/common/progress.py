"""Time and memory of the stages of long work, measured and shown."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bar

from eagle_aot.artifact import Stage
from eagle_aot.common.memory import host_peak_bytes

LOG_AFTER_SECONDS = 5.0
"""Stages shorter than this are not written to a log."""


class ParallelStage(NamedTuple):
    """A stage of another process, which worked from `began` until `received`; the stage ended at
    `ended`. All are seconds of `time.perf_counter`, which processes share."""

    began: float
    received: float
    ended: float
    stage: Stage


class Progress:
    """Measures stages one after another.

    Prints them to stderr: all stages to a terminal, otherwise those that took `LOG_AFTER_SECONDS`.
    """

    def __init__(self, on_stage: Callable[[str], None] | None = None) -> None:
        """With `on_stage`, which is called with the name of each stage as it begins, nothing is
        printed."""
        self._on_stage = on_stage or (lambda name: None)
        quiet = on_stage is not None  # stderr as it is now, even if it is redirected later
        self.console = Console(
            file=sys.stderr, quiet=quiet, force_terminal=False if quiet else None
        )
        self.stages: list[Stage] = []
        self._parallel: list[ParallelStage] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[str], None]]:
        """Measure a stage. Yields a function that begins the next stage with a new name."""
        started = self._start()
        with self._shown(name) as show:

            def following(following_name: str) -> None:
                nonlocal name, started
                self.since(started, name)
                name, started = following_name, self._start()
                show(name)

            yield following
        self.since(started, name)

    @contextmanager
    def download(self, name: str, size: int) -> Iterator[Callable[[int], None]]:
        """Measure a stage that receives `size` bytes. Yields a function that shows how many have
        been received."""
        started = self._start()
        if self.console.is_terminal:
            with self._bar(BarColumn(), DownloadColumn()) as bar:
                task = bar.add_task(name, total=size)
                yield lambda received: bar.update(task, completed=received)
        else:
            self._on_stage(name)
            yield lambda received: None
        self.since(started, name)

    def record_parallel(self, stage: Stage, began: float, ended: float) -> None:
        """Record the stage of a process that began its work at `began`.

        Its host memory is added to that of stages here until now, its GPU memory from the stage's
        beginning to `ended`. Times are those of `time.perf_counter`.
        """
        self._parallel.append(ParallelStage(began, time.perf_counter(), ended, stage))
        self._record(stage)

    def _start(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        return time.perf_counter()

    def since(self, started: float, name: str) -> None:
        """Record a stage that began at `started` of `time.perf_counter`."""
        gpu_peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        other_hosts = [(p.began, p.received, p.stage.host_peak_bytes) for p in self._parallel]
        other_gpus = [
            (p.ended - p.stage.seconds, p.ended, p.stage.gpu_peak_bytes)
            for p in self._parallel
            if p.ended >= started
        ]
        host, gpu = host_peak_bytes() + at_once(other_hosts), gpu_peak + at_once(other_gpus)
        self._record(Stage(name, time.perf_counter() - started, host, gpu))

    def _record(self, stage: Stage) -> None:
        self.stages.append(stage)
        if self.console.is_terminal:
            self.console.print(line(stage))
        elif stage.seconds >= LOG_AFTER_SECONDS:
            self.console.print(line(stage), soft_wrap=True)

    @contextmanager
    def _shown(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show the stage's name with a clock; yields a function that shows another name."""
        if not self.console.is_terminal:
            self._on_stage(name)
            yield self._on_stage
            return
        with self._bar() as bar:
            task = bar.add_task(name, total=None)

            def show(name: str) -> None:
                bar.reset(task, description=name)

            yield show

    def _bar(self, *columns: ProgressColumn) -> Bar:
        """Return a display with a clock, and more columns before it."""
        first = SpinnerColumn(), TextColumn("{task.description}")
        return Bar(*first, *columns, TimeElapsedColumn(), console=self.console, transient=True)


def at_once(spans: Sequence[tuple[float, float, int]]) -> int:
    """Return the largest sum of sizes at any time; a span is beginning, end and size."""
    beginnings = [began for began, _, _ in spans]
    sums = (sum(size for b, e, size in spans if b <= at < e) for at in beginnings)
    return max(sums, default=0)


def line(stage: Stage) -> str:
    """Return a stage as one line of a table."""
    text = f"{stage.name:<20} {stage.seconds:7.1f} s   host peak {gib(stage.host_peak_bytes)}"
    return text + (f"   GPU peak {gib(stage.gpu_peak_bytes)}" if stage.gpu_peak_bytes else "")


def gib(count: int) -> str:
    return f"{count / 2**30:5.2f} GiB"
