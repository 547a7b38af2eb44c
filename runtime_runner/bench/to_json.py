"""Results as the one object that `eagle-bench --json` prints. Times are milliseconds."""

from dataclasses import asdict
from typing import Any

from eagle_aot.runtime_runner.bench.results import AtContext, Floor, Part, Prefill, Results, Round


def to_json(results: Results) -> dict[str, Any]:
    """All figures and their ratios; null is what cannot be known here."""
    return {
        **asdict(results.setup),
        "read_gb_per_second": results.read_bandwidth / 1e9,
        "peak_memory_bytes": results.peak_memory,
        "prefill_chunk": prefill_json(results.chunk),
        "contexts": [context_json(results, at) for at in results.contexts],
    }


def context_json(results: Results, at: AtContext) -> dict[str, Any]:
    """Everything at one context."""
    return {
        "context": at.context,
        "prefill": prefill_json(at.prefill),
        "parts": [part_json(at, part) for part in at.parts],
        "rounds": [round_json(results, at, round_) for round_ in at.rounds],
    }


def prefill_json(prefill: Prefill) -> dict[str, Any]:
    """A prefill and its speed."""
    return asdict(prefill) | {"tokens_per_second": prefill.tokens_per_second}


def part_json(at: AtContext, part: Part) -> dict[str, Any]:
    """A forward."""
    return {
        "name": part.name,
        "sequences": part.sequences,
        "rows": part.rows,
        "ms": part.ms,
        "to_plain": part.ms / at.plain.ms,
        **floor_json(part.floor, part.ms),
    }


def round_json(results: Results, at: AtContext, round_: Round) -> dict[str, Any]:
    """A round, where its time goes, and what it promises."""
    break_even = at.break_even_tau(round_)
    return {
        "chain_len": round_.chain_len,
        "wall_ms": round_.wall_ms,
        "device_ms": round_.device_ms,
        "host_ms": round_.host_ms,
        "launch_ms": round_.launch_ms,
        "breakdown_ms": asdict(at.breakdown(round_)),
        "to_plain": round_.device_ms / at.plain.ms,
        **floor_json(round_.floor, round_.device_ms),
        "host_copies": results.host_copies[round_.chain_len],
        "break_even_tau": break_even,
        "projections": [
            {
                "tau": tau,
                "tokens_per_second": speed,
                "speedup": None if speed is None else tau / break_even,
            }
            for tau in ((1.0,) if round_.chain_len == 0 else results.setup.taus)
            for speed in (round_.tokens_per_second(tau),)
        ],
    }


def floor_json(floor: Floor | None, ms: float) -> dict[str, Any]:
    """The floor of something that took `ms`."""
    if floor is None:
        return {"floor_bytes": None, "floor_ms": None, "to_floor": None}
    return {"floor_bytes": floor.bytes, "floor_ms": floor.ms, "to_floor": ms / floor.ms}
