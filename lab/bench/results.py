"""What was measured, and the ratios that follow from it."""

from dataclasses import dataclass

from eagle_aot.artifact import CacheBytes
from eagle_aot.runtime_runner.decode.shape import Shape

PLAIN = "plain decode"
VERIFY = "verify"
STEP = "draft step"
SEED = "draft seed"
BLOCK = "draft block"


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """Bytes that must be read, and the milliseconds that this device needs to read them."""

    bytes: int
    ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillTime:
    """Running `tokens` tokens of a prompt."""

    tokens: int
    ms: float

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.tokens / self.ms


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One forward over `rows` rows of each of `sequences`: its median device time, or the host's
    time for launching it where that is longer."""

    name: str
    rows: int
    ms: float
    floor: Floor | None
    sequences: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTimes:
    """A round of drafts of a `shape`, none in plain decoding: its median wall time until the host
    has its tokens; how much of that lies outside the device's span, which is getting the device
    started and fetching the tokens; and the time until the host has launched all of it. The latter
    two are None where the host is the device.

    A launch near or above the device's time means a host-bound round: the device's span then is
    mostly waiting for launches, however little `host_ms` is.
    """

    shape: Shape
    wall_ms: float
    host_ms: float | None
    launch_ms: float | None
    floor: Floor | None

    @property
    def device_ms(self) -> float:
        """The device's span, its waiting for launches included."""
        return self.wall_ms - (self.host_ms or 0.0)

    def tokens_per_second(self, tau: float) -> float | None:
        """Speed when rounds emit `tau` tokens on average; None where they cannot."""
        return 1e3 * tau / self.wall_ms if tau <= self.shape.depth + 1 else None

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted."""
        return not self.shape.nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Where a round's wall time goes, in milliseconds. `other` is the device's span outside the
    forwards, which is where a drafter without a head drafts, and `host` what lies outside that
    span."""

    draft: float
    verify: float
    reseed: float
    other: float
    host: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AtContext:
    """All figures behind a context of so many tokens; `prefill` is the whole context's, drafts'
    slots included."""

    context: int
    prefill: PrefillTime
    parts: tuple[Part, ...]
    rounds: tuple[RoundTimes, ...]

    def part(self, name: str, rows: int) -> Part:
        """The one of that name and number of rows, of a single sequence."""
        wanted = name, rows, 1
        return next(p for p in self.parts if (p.name, p.rows, p.sequences) == wanted)

    @property
    def plain(self) -> Part:
        """One forward of one token."""
        return self.part(PLAIN, 1)

    @property
    def plain_round(self) -> RoundTimes:
        """Plain decoding as the loop does it: what speculation has to beat."""
        return next(round_ for round_ in self.rounds if round_.is_plain)

    def break_even_tau(self, round_: RoundTimes) -> float:
        """Tokens that a round must emit on average to be as fast as plain decoding."""
        return round_.wall_ms / self.plain_round.wall_ms

    def breakdown(self, round_: RoundTimes) -> Breakdown:
        """The parts add up to the round's wall time."""
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
        """Milliseconds of a round's drafts, and of what the drafter makes of what was accepted."""
        names, seeds = {part.name for part in self.parts}, (SEED, shape.depth + 1, 1)
        if BLOCK in names:  # of the rows that the head was trained with, or of all that are needed
            fitting = [p for p in self.parts if p.name == BLOCK and p.rows > shape.depth]
            return min(fitting, key=lambda part: part.rows).ms, self.part(*seeds[:2]).ms
        if STEP not in names:
            return 0.0, 0.0
        step = self.part(STEP if shape.is_chain else SEED, shape.topk)
        reseeds = [p.ms for p in self.parts if (p.name, p.rows, p.sequences) == seeds]
        # The first drafts are the reseed's, which is one row where nothing is committed.
        return (shape.depth - 1) * step.ms, [*reseeds, self.part(STEP, 1).ms][0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What was measured, where and how: rounds that `drafter` drafts for, `repeats` samples per
    figure, on recorded steps where `cuda_graphs`, with speeds projected for rounds of `taus`
    tokens."""

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

    `read_bandwidth` in bytes per second; `peak_memory` in bytes by part; `caches` of an export that
    told, and how many sequences more would have room for theirs, None where unknown; `chunk` is the
    longest prefill chunk, in the target alone; `host_copies` per round by chain length, None where
    unknown.
    """

    setup: Setup
    read_bandwidth: float
    peak_memory: dict[str, int]
    caches: CacheBytes | None
    more_fitting: int | None
    chunk: PrefillTime
    host_copies: dict[str, float | None]
    contexts: tuple[AtContext, ...]
