"""`eagle-bench --part rounds`: what the parts of a round cost, in ratios within one run."""

import json
from typing import Annotated

import click
import msgspec
import torch

from eagle_aot import __version__
from eagle_aot.artifact import DRAFTERS, TARGET_VERIFY, CacheBytes, Constants, Manifest
from eagle_aot.common.errors import SettingError
from eagle_aot.common.memory import free_bytes
from eagle_aot.common.progress import Progress
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.bench.floor import Floors, bytes_to_read, experts_per_row
from eagle_aot.lab.bench.memory import bytes_in_use, peak_memory, read_bandwidth
from eagle_aot.lab.bench.parts import Parts
from eagle_aot.lab.bench.prefill import fill, fill_all, longest_chunk
from eagle_aot.lab.bench.report import report, to_json
from eagle_aot.lab.bench.results import Results, Setup
from eagle_aot.lab.bench.samples import Samples, host_copies
from eagle_aot.lab.bench.spec import BenchSpec, check_range, check_taus, new_console
from eagle_aot.lab.bench.timing import clock_for
from eagle_aot.lab.header import device_name
from eagle_aot.runtime_runner.decode.shape import Shape, check_tree, parse_tree
from eagle_aot.runtime_runner.program.aoti import AotiExecutor
from eagle_aot.runtime_runner.runner import Runner

SHORTEST_DEFAULT = 128  # tokens; the default contexts are this times powers of four
DEFAULT_CONTEXTS = 3
DEFAULT_CHAINS = 7  # drafts of the longest chain, where no lengths are named


class RoundsSpec(BenchSpec, kw_only=True, frozen=True):
    """What to measure of rounds. Before `fitted`, no contexts or chains mean the artifact's own."""

    contexts: Annotated[
        tuple[int, ...],
        Option("Tokens in the caches; default: three lengths that fit.", metavar="N,...",
               commas=True),
    ] = ()  # fmt: skip
    chain_lens: Annotated[
        tuple[int, ...], Option("Drafts per round; default: 1 to 7.", metavar="K,...", commas=True)
    ] = ()
    trees: Annotated[
        tuple[str, ...],
        Option("A tree to time; may be repeated.", metavar="DEPTH,TOPK,NODES", flag="--tree"),
    ] = ()
    rows: Annotated[
        tuple[int, ...], Option("Rows to verify of each sequence.", metavar="N,...", commas=True)
    ] = (1, 2, 4, 8, 16, 32, 64)
    batch_sizes: Annotated[
        tuple[int, ...], Option("Sequences in one forward.", metavar="B,...", commas=True)
    ] = (1,)
    taus: Annotated[
        tuple[float, ...],
        Option("Tokens per round to project speeds for.", metavar="X,...", flag="--tau",
               commas=True),
    ] = (2.0, 3.0, 4.0)  # fmt: skip
    repeats: Annotated[int, Option("Samples per figure, whose median counts.", least=1)] = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_taus(self.taus)

    def fitted(self, constants: Constants) -> "RoundsSpec":
        """Sort the lists, and use the artifact's own lengths where none were named.

        Raises SettingError for a length that the artifact does not reach.
        """
        longest_context = constants.max_seq_len - max(constants.tail, *self.rows)
        longest_chain = constants.tail - 1
        check_range("--contexts", self.contexts, longest_context)
        check_range("--chain-lens", self.chain_lens, longest_chain)
        check_range("--rows", self.rows, constants.max_rows)
        check_range("--batch-sizes", self.batch_sizes, constants.max_batch_size)
        for tree in self.tree_shapes:
            if tree.paths is not None:
                raise SettingError("--tree FILE: only DEPTH,TOPK,NODES is timed")
            check_tree(tree, longest_chain, constants.max_rows, constants.max_seq_len)
        chains = self.chain_lens or range(1, min(DEFAULT_CHAINS, longest_chain) + 1)
        return msgspec.structs.replace(
            self,
            contexts=tuple(sorted({*(self.contexts or default_contexts(longest_context))})),
            chain_lens=tuple(sorted({*chains})),
            taus=tuple(sorted({*self.taus})),
        )

    @property
    def tree_shapes(self) -> list[Shape]:
        """The trees. Raises SettingError for what is no tree."""
        return [parse_tree(tree) for tree in self.trees]

    def verified_shapes(self, max_rows: int) -> list[tuple[int, int]]:
        """Return (sequences, rows of each) of every forward to time, one sequence first."""
        nodes = *self.chain_lens, *(tree.nodes for tree in self.tree_shapes)
        rows = sorted({1, *self.rows, *(drafts + 1 for drafts in nodes)})
        batches = sorted({1, *self.batch_sizes})
        return [(b, r) for b in batches for r in rows if r == 1 or b * r <= max_rows]


def default_contexts(longest: int) -> tuple[int, ...]:
    """Return a few lengths, each four times the one before, and the longest that fits."""
    shorter = []
    length = SHORTEST_DEFAULT
    while length < longest:
        shorter.append(length)
        length *= 4
    return (*shorter[-(DEFAULT_CONTEXTS - 1) :], longest)


@spec_command(RoundsSpec)
def main(spec: RoundsSpec) -> None:
    """Time plain decoding, verification, drafting and whole rounds of ARTIFACT.

    Texts are random, and speeds are projected for the given tokens per round: eagle-run reports how
    many there are on your own text.

    \b
        eagle-bench gemma4-tiny-xnnpack
        eagle-bench gemma4-tiny-xnnpack --part prefix --json
    """
    in_use_before, progress = bytes_in_use(), Progress()
    with progress.stage("load"):
        runner = spec.load()
    results = Bench(runner, spec, progress, in_use_before).run()
    if spec.as_json:
        click.echo(json.dumps(to_json(results)))
    else:
        new_console().print(*report(results), sep="\n")


class Bench:
    """Fills one context after the other, and times the parts of a round at its end."""

    def __init__(
        self, runner: Runner, spec: RoundsSpec, progress: Progress, in_use_before: int = 0
    ) -> None:
        """`in_use_before` is the device's memory in use before the artifact was opened, in bytes.

        Raises SettingError for lengths that the artifact does not reach.
        """
        self._runner = runner
        self._spec = spec.fitted(runner.constants)
        self._progress = progress
        self._in_use_before = in_use_before
        self._clock = clock_for(runner.executor.device)

    def run(self) -> Results:
        """Measure everything.

        The read bandwidth comes after the peak of memory, because it needs memory of its own. The
        counting of copies comes last, because the profiler slows down what comes after it.
        """
        runner, spec, executor = self._runner, self._spec, self._runner.executor
        stages = self._progress.stages
        loaded = len(stages)  # stages so far are not part of the peak
        with self._progress.stage("record"):
            parts = Parts(runner, spec)
        with self._progress.stage("prefill"):
            chunk = longest_chunk(runner, self._clock, spec.repeats)
        samples = [self._samples(parts, context) for context in spec.contexts]
        peak = max(stage.gpu_peak_bytes for stage in stages[loaded:])
        memory = peak_memory(executor, peak, self._in_use_before)
        manifest = Manifest.read(runner.directory)
        caches = CacheBytes.of(manifest)
        free = None if executor.pages else free_bytes(executor.device)
        with self._progress.stage("read bandwidth"):
            bandwidth = read_bandwidth(self._clock, executor.device)
        methods = TARGET_VERIFY, *DRAFTERS[runner.drafter.kind]
        read = bytes_to_read(executor, runner.constants, methods, experts_per_row(manifest))
        floors = Floors(read, bandwidth)
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
        executor = self._runner.executor
        return Setup(
            artifact=self._runner.directory.resolve().name,
            executor=executor.name,
            cuda_graphs=not self._spec.no_cuda_graph and isinstance(executor, AotiExecutor),
            device=device_name(executor.device),
            drafter=self._runner.drafter.kind,
            versions={"eagle-aot": __version__, "torch": torch.__version__},
            repeats=self._spec.repeats,
            taus=self._spec.taus,
        )

    def _samples(self, parts: Parts, context: int) -> Samples:
        spec = self._spec
        with self._progress.stage(f"prefill of {context}"):
            fill_all(self._runner, range(1, max(spec.batch_sizes)), context)
            prefill = fill(self._runner, max(spec.chain_lens), context, spec.repeats)
        samples = Samples(self._clock, parts, prefill)
        with self._progress.stage(f"rounds at {context}"):
            for _ in range(spec.repeats):
                samples.take()
        return samples

    def _host_copies(self, parts: Parts) -> dict[str, float | None]:
        """Copies to the host per round, by the round's label, at the last context."""
        with self._progress.stage("copies to the host"):
            return {
                round_.shape.label: None if self._clock.is_host else host_copies(round_.timed)
                for round_ in parts.rounds
            }
