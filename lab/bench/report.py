"""Results of rounds as tables, and as the one object of `--json`."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from eagle_aot.common.text import gigabytes
from eagle_aot.lab.bench.results import AtContext, Floor, Part, PrefillTime, Results, RoundTimes
from eagle_aot.lab.bench.spec import UNKNOWN, milliseconds, table_of


def report(results: Results) -> Iterator[str | Table]:
    """Yield what was measured where, then two tables per context."""
    yield from headlines(results)
    for at in results.contexts:
        yield f"\n[bold]{at.context:,} tokens of context[/bold] (filled {speed_of(at.prefill)})"
        yield parts_table(at)
        yield rounds_table(results, at)


def headlines(results: Results) -> Iterator[str]:
    """Yield artifact, machine, memory and prefill, a line each."""
    setup = results.setup
    graphs = " with CUDA graphs" if setup.cuda_graphs else ""
    setting = f"{setup.executor}{graphs}, {setup.device}, {setup.drafter}"
    yield f"[bold]{escape(setup.artifact)}[/bold], {setting}"
    yield f"reads {results.read_bandwidth / 1e9:,.1f} GB/s; medians of {setup.repeats} samples"
    memory = (f"{part} {gigabytes(size)}" for part, size in results.peak_memory.items())
    yield f"peak memory: {', '.join(memory)}"
    if results.caches is not None:
        more = results.more_fitting
        yield f"{results.caches}{'' if more is None else f', {more:,} more would fit here'}"
    yield f"longest prefill chunk, target alone: {speed_of(results.chunk)}"


def parts_table(at: AtContext) -> Table:
    """Return the forwards that rounds consist of."""
    table = table_of("forward", "sequences", "rows", "ms", "x plain", "floor ms", "x floor")
    for part in at.parts:
        table.add_row(
            part.name,
            str(part.sequences),
            str(part.rows),
            f"{part.ms:.3f}",
            f"{part.ms / at.plain.ms:.2f}",
            UNKNOWN if part.floor is None else f"{part.floor.ms:.3f}",
            to_floor(part.floor, part.ms),
        )
    return table


def rounds_table(results: Results, at: AtContext) -> Table:
    """Return whole rounds and the speeds that they promise."""
    table = table_of(
        "round", "ms", "device", "host", "launch", "copies", "x floor", "break-even\ntau",
        *(f"tokens/s\nat tau {tau:g}" for tau in results.setup.taus),
    )  # fmt: skip
    for round_ in at.rounds:
        table.add_row(*round_cells(results, at, round_))
    return table


def round_cells(results: Results, at: AtContext, round_: RoundTimes) -> Iterator[str]:
    """Yield the cells of a round. Plain decoding has no tau but 1."""
    copies = results.host_copies[round_.shape.label]
    yield round_.shape.label
    yield f"{round_.wall_ms:.3f}"
    yield f"{round_.device_ms:.3f}"
    yield milliseconds(round_.host_ms)
    yield milliseconds(round_.launch_ms)
    yield UNKNOWN if copies is None else f"{copies:g}"
    yield to_floor(round_.floor, round_.device_ms)
    yield f"{at.break_even_tau(round_):.2f}"
    for tau in results.setup.taus:
        yield projection(at, round_, 1.0 if round_.is_plain else tau)


def projection(at: AtContext, round_: RoundTimes, tau: float) -> str:
    """Return the tokens per second at `tau`, and their ratio to plain decoding's."""
    speed = round_.tokens_per_second(tau)
    if speed is None:
        return UNKNOWN
    text = f"{speed:,.{0 if speed >= 100 else 1}f}"
    return f"{text} ({tau / at.break_even_tau(round_):.2f}x)" if not round_.is_plain else text


def speed_of(prefill: PrefillTime) -> str:
    """Return `512 tokens in 20.0 ms: 25,600 tokens/s`."""
    return (
        f"{prefill.tokens:,} tokens in {prefill.ms:,.1f} ms: "
        f"{prefill.tokens_per_second:,.0f} tokens/s"
    )


def to_floor(floor: Floor | None, ms: float) -> str:
    """Return how many times its floor something took."""
    return UNKNOWN if floor is None else f"{ms / floor.ms:.2f}"


def to_json(results: Results) -> dict[str, Any]:
    """Return all figures and ratios. Times are milliseconds; null is what is not known here."""
    return {
        **asdict(results.setup),
        "read_gb_per_second": results.read_bandwidth / 1e9,
        "peak_memory_bytes": results.peak_memory,
        "caches": None if results.caches is None else results.caches.to_json(),
        "more_sequences_fitting": results.more_fitting,
        "prefill_chunk": prefill_json(results.chunk),
        "contexts": [context_json(results, at) for at in results.contexts],
    }


def context_json(results: Results, at: AtContext) -> dict[str, Any]:
    """Return everything at one context."""
    return {
        "context": at.context,
        "prefill": prefill_json(at.prefill),
        "parts": [part_json(at, part) for part in at.parts],
        "rounds": [round_json(results, at, round_) for round_ in at.rounds],
    }


def prefill_json(prefill: PrefillTime) -> dict[str, Any]:
    """Return a prefill and its speed."""
    return asdict(prefill) | {"tokens_per_second": prefill.tokens_per_second}


def part_json(at: AtContext, part: Part) -> dict[str, Any]:
    """Return a forward."""
    return {
        "name": part.name,
        "sequences": part.sequences,
        "rows": part.rows,
        "ms": part.ms,
        "to_plain": part.ms / at.plain.ms,
        **floor_json(part.floor, part.ms),
    }


def round_json(results: Results, at: AtContext, round_: RoundTimes) -> dict[str, Any]:
    """Return a round, where its time goes, and its speeds."""
    break_even = at.break_even_tau(round_)
    return {
        "chain_len": round_.shape.depth,
        "tree": None if round_.shape.is_chain else str(round_.shape),
        "wall_ms": round_.wall_ms,
        "device_ms": round_.device_ms,
        "host_ms": round_.host_ms,
        "launch_ms": round_.launch_ms,
        "breakdown_ms": asdict(at.breakdown(round_)),
        "to_plain": round_.device_ms / at.plain.ms,
        **floor_json(round_.floor, round_.device_ms),
        "host_copies": results.host_copies[round_.shape.label],
        "break_even_tau": break_even,
        "projections": [
            {
                "tau": tau,
                "tokens_per_second": speed,
                "speedup": None if speed is None else tau / break_even,
            }
            for tau in ((1.0,) if round_.is_plain else results.setup.taus)
            for speed in (round_.tokens_per_second(tau),)
        ],
    }


def floor_json(floor: Floor | None, ms: float) -> dict[str, Any]:
    """Return the floor of something that took `ms`."""
    if floor is None:
        return {"floor_bytes": None, "floor_ms": None, "to_floor": None}
    return {"floor_bytes": floor.bytes, "floor_ms": floor.ms, "to_floor": ms / floor.ms}
