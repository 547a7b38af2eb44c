"""Measurements of rounds, and the ratios that follow from them."""

from dataclasses import dataclass

from eagle_aot.artifact import CacheBytes
from eagle_aot.runtime_runner.decode.shape import Shape

PLAIN = "plain decode"
VERIFY = "verify"
STEP = "draft step"
RESEED = "reseed"
BLOCK = "draft block"


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """Bytes that must be read, and the milliseconds that this device takes to read them."""

    bytes: int
    ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillTime:
    """The time to run `tokens` tokens of a prompt."""

    tokens: int
    ms: float

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.tokens / self.ms


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One forward over `rows` rows of each of `sequences`.

    `ms` is its median device time, or the host's time to launch it where that is longer.
    """

    name: str
    rows: int
    ms: float
    floor: Floor | None
    sequences: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTimes:
    """Median times of a round with drafts of `shape`; a shape without nodes is plain decoding.

    `wall_ms` ends when the host has the tokens. `host_ms` is its part outside the device's span:
    starting the device and fetching the tokens. `launch_ms` ends when the host has launched
    everything. The latter two are None where the host is the device.

    A launch time near or above the device's time means a host-bound round: the device's span then
    is mostly waiting for launches, however small `host_ms` is.
    """

    shape: Shape
    wall_ms: float
    host_ms: float | None
    launch_ms: float | None
    floor: Floor | None

    @property
    def device_ms(self) -> float:
        """The device's span, waiting for launches included."""
        return self.wall_ms - (self.host_ms or 0.0)

    def tokens_per_second(self, tau: float) -> float | None:
        """Return the speed of rounds that emit `tau` tokens; None where they cannot."""
        return 1e3 * tau / self.wall_ms if tau <= self.shape.depth + 1 else None

    @property
    def is_plain(self) -> bool:
        """Whether this is plain decoding."""
        return not self.shape.nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Where a round's wall time goes, in milliseconds.

    `other` is the device's span outside the forwards, where a drafter without a head drafts. `host`
    is outside the device's span.
    """

    draft: float
    verify: float
    reseed: float
    other: float
    host: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AtContext:
    """All figures at `context` tokens; `prefill` is the whole context's, for target and drafter."""

    context: int
    prefill: PrefillTime
    parts: tuple[Part, ...]
    rounds: tuple[RoundTimes, ...]

    def part(self, name: str, rows: int) -> Part:
        """Return the part with this name and number of rows, of a single sequence."""
        key = name, rows, 1
        return next(p for p in self.parts if (p.name, p.rows, p.sequences) == key)

    @property
    def plain(self) -> Part:
        """The forward of one token."""
        return self.part(PLAIN, 1)

    @property
    def plain_round(self) -> RoundTimes:
        """The round of plain decoding, which speculation has to beat."""
        return next(round_ for round_ in self.rounds if round_.is_plain)

    def break_even_tau(self, round_: RoundTimes) -> float:
        """Return how many tokens a round must emit to be as fast as plain decoding."""
        return round_.wall_ms / self.plain_round.wall_ms

    def breakdown(self, round_: RoundTimes) -> Breakdown:
        """Return the round's parts, which add up to its wall time."""
        shape = round_.shape
        verify = (self.plain if round_.is_plain else self.part(VERIFY, shape.nodes + 1)).ms
        draft = reseed = 0.0
        if not round_.is_plain:
            draft, reseed = self._drafting(shape)
        other = round_.device_ms - draft - verify - reseed
        return Breakdown(
            draft=draft, verify=verify, reseed=reseed, other=other, host=round_.host_ms or 0.0
        )

    def _drafting(self, shape: Shape) -> tuple[float, float]:
        """Return the milliseconds of a round's drafts, and of the drafter's reseed."""
        names, rows = {part.name for part in self.parts}, shape.depth + 1
        if BLOCK in names:  # of the rows that the head was trained with, or more where needed
            fitting = [p for p in self.parts if p.name == BLOCK and p.rows >= rows]
            return min(fitting, key=lambda part: part.rows).ms, self.part(RESEED, rows).ms
        if STEP not in names:
            return 0.0, 0.0
        step = self.part(STEP if shape.is_chain else RESEED, shape.topk)
        reseeds = [p.ms for p in self.parts if (p.name, p.rows, p.sequences) == (RESEED, rows, 1)]
        # The reseed gives the first drafts; it is one row for a drafter that commits nothing.
        return (shape.depth - 1) * step.ms, [*reseeds, self.part(STEP, 1).ms][0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What was measured, where and how: `repeats` samples per figure, and speeds projected for
    rounds of `taus` tokens; `cuda_graphs` says whether rounds were recorded."""

    artifact: str
    executor: str
    cuda_graphs: bool
    device: str
    drafter: str
    versions: dict[str, str]
    repeats: int
    taus: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """One run of the bench.

    `read_bandwidth` is in bytes per second, `peak_memory` in bytes by part. `caches` are the
    export's, and `more_fitting` is how many sequences more would fit, None where unknown. `chunk`
    is the longest prompt chunk, in the target alone. `host_copies` are per round by its label, None
    where unknown.
    """

    setup: Setup
    read_bandwidth: float
    peak_memory: dict[str, int]
    caches: CacheBytes | None
    more_fitting: int | None
    chunk: PrefillTime
    host_copies: dict[str, float | None]
    contexts: tuple[AtContext, ...]
