"""One profile: forwards at every context and number of rows, timed first and taken apart then."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from eagle_aot.artifact import TARGET_VERIFY, Constants
from eagle_aot.common.progress import Progress
from eagle_aot.lab.bench.floor import Floors, bytes_to_read
from eagle_aot.lab.bench.kernels.verify.kernels import Kernel, kernels_of
from eagle_aot.lab.bench.memory import read_bandwidth
from eagle_aot.lab.bench.parts import RepeatedForward
from eagle_aot.lab.bench.results import Floor
from eagle_aot.lab.bench.settings import check_range
from eagle_aot.lab.bench.timing import CudaClock, Series
from eagle_aot.runtime_runner.decode.target import no_moves
from eagle_aot.runtime_runner.program.aoti import AotiExecutor


@dataclass(frozen=True, kw_only=True, slots=True)
class Verify:
    """A forward of `rows` rows behind `context` tokens. `graph_us` is the median time of its CUDA
    graph."""

    context: int
    rows: int
    graph_us: float
    floor: Floor
    kernels: list[Kernel]

    @property
    def kernels_us(self) -> float:
        """Its kernels' times together."""
        return sum(kernel.us for kernel in self.kernels)

    @property
    def gaps_us(self) -> float:
        """What the graph takes beside them."""
        return self.graph_us - self.kernels_us

    @property
    def to_floor(self) -> float:
        """How many times its floor it takes."""
        return self.graph_us / (1e3 * self.floor.ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """`read_bandwidth` is in bytes per second."""

    read_bandwidth: float
    verifies: list[Verify]


def check_lengths(
    rows: Sequence[int], contexts: Sequence[int], max_window: int, max_seq_len: int
) -> None:
    """Raise SettingError for what a program of these lengths does not reach.

    Behind a full context as well: its caches hold a verify window more.
    """
    check_range("--rows", rows, max_window)
    check_range("--context", contexts, max_seq_len)


def measure(
    executor: AotiExecutor,
    constants: Constants,
    rows: Sequence[int],
    contexts: Sequence[int],
    replays: int,
    progress: Progress,
) -> Results:
    """Every number of rows at every context; the profiler comes last, because it slows down what
    comes after it."""
    clock = CudaClock()
    with progress.stage("record"):
        still = no_moves(1, constants.tail, executor.device)
        forwards = [
            RepeatedForward(executor, constants, TARGET_VERIFY, (1, n), still) for n in rows
        ]
    places = list(itertools.product(contexts, forwards))
    with progress.stage("time"):
        times = [graph_us(clock, forward, context, replays) for context, forward in places]
    with progress.stage("read bandwidth"):
        bandwidth = read_bandwidth(clock, executor.device)
    with progress.stage("profile"):
        kernels = [kernels_at(forward, context) for context, forward in places]
    floors = Floors(bytes_to_read(executor, constants), bandwidth)
    verifies = [
        Verify(
            context=context,
            rows=forward.rows,
            graph_us=us,
            floor=floor_of(floors, forward, context),
            kernels=found,
        )
        for (context, forward), us, found in zip(places, times, kernels, strict=True)
    ]
    return Results(read_bandwidth=bandwidth, verifies=verifies)


def graph_us(clock: CudaClock, forward: RepeatedForward, context: int, replays: int) -> float:
    """The median of `replays` replays, each on other random tokens and timed by itself."""
    forward.place(context)
    series = Series(clock, forward.timed, calls=1)
    for _ in range(replays):
        series.sample()
    return 1e3 * series.ms


def kernels_at(forward: RepeatedForward, context: int) -> list[Kernel]:
    """The kernels of one replay behind `context` tokens."""
    forward.place(context)
    return kernels_of(forward.timed.play)


def floor_of(floors: Floors, forward: RepeatedForward, context: int) -> Floor:
    """Every weight once, and of the caches what may be attended."""
    floor = floors.forward(TARGET_VERIFY, forward.rows, context)
    assert floor is not None  # the bytes of an AotiExecutor's program are known
    return floor
