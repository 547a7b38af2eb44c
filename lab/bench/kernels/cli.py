"""`eagle-bench --part kernels`: where the time of one `target_verify` goes, by class of kernel."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from rich.markup import escape
from rich.table import Table

from eagle_aot.artifact import TARGET_VERIFY, Manifest
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.common.progress import Progress
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.common.text import gigabytes
from eagle_aot.lab.bench.floor import Floors, bytes_to_read, experts_per_row
from eagle_aot.lab.bench.kernels.profile import DENSE, Kernel, class_of, kernels_of, shares
from eagle_aot.lab.bench.memory import read_bandwidth
from eagle_aot.lab.bench.parts import RepeatedForward
from eagle_aot.lab.bench.results import Floor
from eagle_aot.lab.bench.spec import BenchSpec, check_range, table_of
from eagle_aot.lab.bench.timing import CudaClock, Series
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.target import no_moves
from eagle_aot.runtime_runner.program.aoti import AotiExecutor
from eagle_aot.triton_kernels.kv_int8 import head_dim_of, quantize_entries

SHOWN = 25  # kernels
NOTES = f"""\
Caches hold standard normal numbers, tokens are random. The floor reads every weight once and the
slots that may be attended. Kernels are timed by CUPTI; gaps are the rest of the CUDA graph's
time. '{DENSE}' holds all dense GEMMs: the draft head's fc, a few per cent of it, as well."""


class KernelsSpec(BenchSpec, kw_only=True, frozen=True):
    """The forwards to profile."""

    rows: Annotated[tuple[int, ...], Option("Rows to verify.", metavar="T,...", commas=True)] = (
        1, 4, 8,
    )  # fmt: skip
    contexts: Annotated[
        tuple[int, ...],
        Option("Tokens in the caches; default: all that fit.", metavar="N,...", commas=True),
    ] = ()
    repeats: Annotated[int, Option("Samples of a time, whose median counts.", least=1)] = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardProfile:
    """A forward of `rows` rows at `context` tokens; `graph_us` is its CUDA graph's median time."""

    context: int
    rows: int
    graph_us: float
    floor: Floor
    kernels: list[Kernel]

    @property
    def kernels_us(self) -> float:
        """The time of all kernels."""
        return sum(kernel.us for kernel in self.kernels)

    @property
    def gaps_us(self) -> float:
        """The graph's time outside its kernels."""
        return self.graph_us - self.kernels_us

    @property
    def to_floor(self) -> float:
        """How many times its floor it takes."""
        return self.graph_us / (1e3 * self.floor.ms)

    def to_json(self) -> dict[str, Any]:
        """Return all of it, every kernel included."""
        return {
            "context": self.context,
            "rows": self.rows,
            "graph_us": self.graph_us,
            "kernels_us": self.kernels_us,
            "gaps_us": self.gaps_us,
            "floor_bytes": self.floor.bytes,
            "floor_us": 1e3 * self.floor.ms,
            "to_floor": self.to_floor,
            "classes": [asdict(share) for share in shares(self.kernels)],
            "kernels": [asdict(k) | {"class": class_of(k.name)} for k in self.kernels],
        }


@spec_command(KernelsSpec)
def main(spec: KernelsSpec) -> None:
    """Profile target_verify of ARTIFACT, compiled for CUDA, by class of kernel on this GPU."""
    if not torch.cuda.is_available():
        raise UnsupportedError("a profile needs an NVIDIA GPU, and this machine shows none")
    runner, progress = spec.load(), Progress()
    contexts = spec.contexts or (runner.constants.max_seq_len,)
    check_range("--rows", spec.rows, runner.constants.max_rows)
    check_range("--contexts", contexts, runner.constants.max_seq_len)
    fill_caches(runner)
    bandwidth, profiles = measure(runner, spec.rows, contexts, spec.repeats, progress)
    texts: list[str | Table] = [f"reads {bandwidth / 1e9:,.1f} GB/s", NOTES]
    for profile in profiles:
        texts += [f"\n[bold]{summary(profile)}[/bold]", shares_table(profile)]
        texts.append(kernels_table(profile.kernels))
    results = {
        "read_gb_per_second": bandwidth / 1e9,
        "forwards": [profile.to_json() for profile in profiles],
    }
    spec.show(f"target_verify of {spec.name}", results, *texts)


def fill_caches(runner: Runner) -> None:
    """Fill caches with normal numbers: zeros take less power, which a GPU's clock depends on.

    Caches of integers (positions of recurrent states) stay as they are. Raises UnsupportedError for
    an executor that does not show its caches.
    """
    executor = runner.executor
    if not isinstance(executor, AotiExecutor):
        raise UnsupportedError("a profile needs an artifact for CUDA and --executor aoti")
    for weight in executor.methods[TARGET_VERIFY].weights:
        cache = executor.weights.tensor(weight) if weight.fqn in executor.weights.caches else None
        if cache is not None and cache.is_floating_point():
            cache.normal_()
        elif cache is not None and cache.dtype == torch.int8:
            for head in cache:
                shape = *head.shape[:-1], head_dim_of(head)
                head.copy_(quantize_entries(torch.randn(shape, device=head.device)))


def measure(
    runner: Runner, rows: Sequence[int], contexts: Sequence[int], repeats: int, progress: Progress
) -> tuple[float, list[ForwardProfile]]:
    """Return the read bandwidth and a profile of each number of rows at each context.

    The profiler comes last, because it slows down what comes after it.
    """
    clock, executor, constants = CudaClock(), runner.executor, runner.constants
    with progress.stage("record"):
        still = no_moves(1, constants.tail, executor.device)
        more = runner.target.inputs_after(still, largest_only=True)
        forwards = [
            RepeatedForward(executor, constants, TARGET_VERIFY, (1, count), *more) for count in rows
        ]
    points = list(itertools.product(contexts, forwards))
    with progress.stage("time"):
        times = [graph_us(clock, forward, context, repeats) for context, forward in points]
    with progress.stage("read bandwidth"):
        bandwidth = read_bandwidth(clock, executor.device)
    top_k = experts_per_row(Manifest.read(runner.directory))
    read, profiles = bytes_to_read(executor, constants, top_k=top_k), list[ForwardProfile]()
    floors = Floors(read, bandwidth)
    with progress.stage("profile"):
        for (context, forward), us in zip(points, times, strict=True):
            forward.place(context)
            floor = floors.forward(TARGET_VERIFY, forward.rows, context)
            assert floor is not None  # an AotiExecutor knows its weights
            profiles.append(
                ForwardProfile(
                    context=context,
                    rows=forward.rows,
                    graph_us=us,
                    floor=floor,
                    kernels=kernels_of(forward.timed.run),
                )
            )
    return bandwidth, profiles


def graph_us(clock: CudaClock, forward: RepeatedForward, context: int, repeats: int) -> float:
    """Return the median time of replays, each on other random tokens and timed by itself."""
    forward.place(context)
    series = Series(clock, forward.timed, calls=1)
    for _ in range(repeats):
        series.sample()
    return 1e3 * series.ms


def summary(profile: ForwardProfile) -> str:
    """Return a forward in two lines."""
    floor = profile.floor
    return (
        f"T = {profile.rows} at {profile.context:,} tokens: {profile.graph_us:,.0f} us: "
        f"kernels {profile.kernels_us:,.0f} us, gaps {profile.gaps_us:,.0f} us\n"
        f"floor {1e3 * floor.ms:,.0f} us ({gigabytes(floor.bytes)}): {profile.to_floor:.2f} x floor"
    )


def shares_table(profile: ForwardProfile) -> Table:
    """Return the classes of a forward's kernels."""
    table = table_of("class", "kernels", "us", "share")
    for part in shares(profile.kernels):
        table.add_row(part.name, f"{part.launches:g}", f"{part.us:,.1f}", f"{part.share:.1%}")
    return table


def kernels_table(kernels: list[Kernel]) -> Table:
    """Return the kernels that take longest."""
    table = Table()
    for name in ("kernels", "total us", "mean us"):
        table.add_column(name, justify="right")
    table.add_column("class", no_wrap=True)
    table.add_column(f"name (the first {SHOWN} by time of {len(kernels)})", overflow="fold")
    for k in kernels[:SHOWN]:
        row = f"{k.launches:g}", f"{k.us:,.1f}", f"{k.mean_us:,.2f}", class_of(k.name)
        table.add_row(*row, escape(k.name))
    return table
