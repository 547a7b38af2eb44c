"""Results with round numbers, as a GPU might have given them."""

from eagle_aot.artifact import CacheBytes
from eagle_aot.lab.bench.results import (
    PLAIN,
    RESEED,
    STEP,
    VERIFY,
    AtContext,
    Floor,
    Part,
    PrefillTime,
    Results,
    RoundTimes,
    Setup,
)
from eagle_aot.runtime_runner.decode.shape import Shape


def made_up_context(context: int = 512) -> AtContext:
    """Verifying T rows takes 10 + T ms, a draft step 1 ms, a seed 2 ms; plain rounds take 12 ms,
    rounds of two drafts 18 ms, with 0.5 and 1 ms for the host; launching takes 0.25 and
    2 ms."""
    return AtContext(
        context=context,
        prefill=PrefillTime(tokens=context, ms=256.0),
        parts=(
            Part(name=PLAIN, rows=1, ms=11.0, floor=Floor(bytes=10_000_000, ms=5.0)),
            Part(name=VERIFY, rows=2, ms=12.0, floor=Floor(bytes=10_400_000, ms=5.2)),
            Part(name=VERIFY, rows=3, ms=13.2, floor=Floor(bytes=10_800_000, ms=5.4)),
            Part(name=STEP, rows=1, ms=1.0, floor=None),
            Part(name=RESEED, rows=3, ms=2.0, floor=None),
        ),
        rounds=(
            RoundTimes(
                shape=Shape.chain(0),
                wall_ms=12.0,
                host_ms=0.5,
                launch_ms=0.25,
                floor=Floor(bytes=10_000_000, ms=5.0),
            ),
            RoundTimes(
                shape=Shape.chain(2),
                wall_ms=18.0,
                host_ms=1.0,
                launch_ms=2.0,
                floor=Floor(bytes=13_600_000, ms=6.8),
            ),
        ),
    )


def made_up_results(*contexts: AtContext) -> Results:
    """A run over some contexts, one by default."""
    return Results(
        setup=Setup(
            artifact="made-[up]-$pair$",
            executor="aoti",
            cuda_graphs=True,
            device="a GPU",
            drafter="eagle3",
            versions={"torch": "2.11.0"},
            repeats=20,
            taus=(2.0, 3.0, 4.0),
        ),
        read_bandwidth=2e9,
        peak_memory={"target weights": 8_000_000_000, "workspace": 500_000_000},
        caches=CacheBytes(
            bytes=9_800_000_000,
            bytes_of_a_sequence=4_900_000_000,
            target_bytes_of_a_sequence=4_600_000_000,
            draft_bytes_of_a_sequence=300_000_000,
        ),
        more_fitting=3,
        chunk=PrefillTime(tokens=128, ms=32.0),
        host_copies={"plain": 1.0, "K = 2": None},
        contexts=contexts or (made_up_context(),),
    )
