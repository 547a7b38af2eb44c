"""One run of the bench over an opened artifact."""

import platform

import torch

from eagle_aot import __version__
from eagle_aot.artifact import DRAFTERS, TARGET_VERIFY, CacheBytes, Manifest
from eagle_aot.common.device_memory import free_bytes
from eagle_aot.common.progress import Progress
from eagle_aot.lab.bench.floor import Floors, bytes_to_read
from eagle_aot.lab.bench.memory import peak_memory, read_bandwidth
from eagle_aot.lab.bench.parts import Parts
from eagle_aot.lab.bench.prefill import fill, fill_all, longest_chunk
from eagle_aot.lab.bench.results import Results, Setup
from eagle_aot.lab.bench.samples import Samples, host_copies
from eagle_aot.lab.bench.settings import Settings
from eagle_aot.lab.bench.timing import clock_for
from eagle_aot.runtime_runner.program.aoti import AotiExecutor
from eagle_aot.runtime_runner.runner import Runner


class Bench:
    """Fills one context after the other and times the parts of a round behind it."""

    def __init__(
        self, runner: Runner, settings: Settings, progress: Progress, in_use_before: int = 0
    ) -> None:
        """`in_use_before` in bytes, of the device before the artifact was opened. Raises
        SettingError when the artifact does not reach what `settings` ask for."""
        self._runner = runner
        self._settings = settings.fitted(runner.constants)
        self._progress = progress
        self._in_use_before = in_use_before
        self._clock = clock_for(runner.executor.device)

    def run(self) -> Results:
        """All figures.

        The read bandwidth comes after the peak of memory, because it needs some of its own, and
        the counting of copies last, because the profiler slows down what comes after it.
        """
        runner, settings, executor = self._runner, self._settings, self._runner.executor
        stages = self._progress.stages
        loaded = len(stages)  # what came before is none of the peak
        with self._progress.stage("record"):
            parts = Parts(runner, settings)
        with self._progress.stage("prefill"):
            chunk = longest_chunk(runner, self._clock, settings.repeats)
        samples = [self._samples(parts, context) for context in settings.contexts]
        peak = max(stage.gpu_peak_bytes for stage in stages[loaded:])
        memory = peak_memory(executor, peak, self._in_use_before)
        caches, free = CacheBytes.of(Manifest.read(runner.directory)), free_bytes(executor.device)
        with self._progress.stage("read bandwidth"):
            bandwidth = read_bandwidth(self._clock, executor.device)
        methods = TARGET_VERIFY, *DRAFTERS[runner.drafter.kind]
        floors = Floors(bytes_to_read(executor, runner.constants, methods), bandwidth)
        return Results(
            setup=self._setup(),
            read_bandwidth=bandwidth,
            peak_memory=memory,
            caches=caches,
            more_fitting=None if caches is None or free is None else caches.fitting(free),
            chunk=chunk,
            contexts=tuple(taken.figures(floors) for taken in samples),
            host_copies=self._host_copies(parts),
        )

    def _setup(self) -> Setup:
        settings, executor = self._settings, self._runner.executor
        return Setup(
            artifact=self._runner.directory.resolve().name,
            executor=executor.name,
            cuda_graphs=settings.cuda_graphs and isinstance(executor, AotiExecutor),
            device=device_name(executor.device),
            drafter=self._runner.drafter.kind,
            versions={"eagle-aot": __version__, "torch": torch.__version__},
            repeats=settings.repeats,
            taus=settings.taus,
        )

    def _samples(self, parts: Parts, context: int) -> Samples:
        settings = self._settings
        with self._progress.stage(f"prefill of {context}"):
            fill_all(self._runner, range(1, max(settings.batch_sizes)), context)
            filled = fill(self._runner, max(settings.chain_lens), context, settings.repeats)
        samples = Samples(self._clock, parts, filled)
        with self._progress.stage(f"rounds behind {context}"):
            for _ in range(settings.repeats):
                samples.take()
        return samples

    def _host_copies(self, parts: Parts) -> dict[str, float | None]:
        """Per round by label, behind the last context."""
        with self._progress.stage("copies to the host"):
            return {
                round_.shape.label: None if self._clock.is_host else host_copies(round_.timed)
                for round_ in parts.rounds
            }


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
