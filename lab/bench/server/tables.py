"""What was measured, as a person reads it."""

import math
from collections.abc import Iterator, Sequence

from rich.table import Table

from eagle_aot.lab.bench.report import UNKNOWN, table_of
from eagle_aot.lab.bench.server.figures import EngineTime, Line

WAITS = (
    ("first_token", "first token,\nseconds:", 1.0, 3, ("median", "95 %", "99 %")),
    ("per_token", "ms a token:", 1e3, 2, ("median", "99 %")),
    ("between", "ms between\nevents:", 1e3, 2, ("median", "99 %")),
)
"""Of a line: what is told, its name, unit and digits, and of which share of all."""
UNTOLD = EngineTime(seconds=math.nan, tokens=0)


def tables(lines: Sequence[Line], one: EngineTime | None) -> Iterator[Table]:
    """What clients saw, and what the server's host did; `one` is one text after the other, by the
    artifact alone."""
    yield of_clients(lines, one)
    if any(line.served.rounds for line in lines):
        yield of_host(lines)


def of_clients(lines: Sequence[Line], one: EngineTime | None) -> Table:
    """Speeds and times."""
    names = (f"{name} {share}" for _, name, _, _, shares in WAITS for share in shares)
    shown = table_of("clients", "tokens/s", "x one text\nalone", "x as many\nalone", *names)
    for line in lines:
        speed = line.served.tokens_per_second
        waits = (
            number(getattr(line, what).get(share), unit, digits)
            for what, _, unit, digits, shares in WAITS
            for share in shares
        )
        ratios = times(speed, one), times(speed, line.alone)
        shown.add_row(str(line.clients), f"{speed:,.0f}", *ratios, *waits)
    return shown


def of_host(lines: Sequence[Line]) -> Table:
    """Where the engine's thread was, and what the one that speaks with clients took."""
    shown = table_of(
        "clients", "texts\na round", "tokens a text\nand round", "round ms", "alone",
        "host ms", "alone", "host\nshare", "alone", "answering,\nms a round", "us a token",
        "clients' CPU",
    )  # fmt: skip
    for line in lines:
        served, alone = line.served, line.alone or UNTOLD
        shown.add_row(
            str(line.clients),
            number(line.texts_of_round, 1, 2),
            number(line.tau, 1, 2),
            *(number(one.round_ms, 1, 3) for one in (served, alone)),
            *(number(one.host_ms, 1, 3) for one in (served, alone)),
            *(share(one.host_share) for one in (served, alone)),
            number(line.cpu_of_round, 1, 3),
            number(line.cpu_of_token, 1e6, 0),
            share(line.clients_cpu),
        )
    return shown


def times(speed: float, other: EngineTime | None) -> str:
    """How many times another's speed."""
    return UNKNOWN if other is None else f"{speed / other.tokens_per_second:.2f}"


def number(value: float | None, unit: float, digits: int) -> str:
    """In such units."""
    return UNKNOWN if value is None else f"{unit * value:,.{digits}f}"


def share(value: float | None) -> str:
    """In per cent."""
    return UNKNOWN if value is None else f"{value:.1%}"
