"""Ratios and projections, against numbers worked out by hand."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.lab.bench.report import to_json
from eagle_aot.lab.bench.results import VERIFY, AtContext, Part, RoundTimes
from eagle_aot.runtime_runner.decode.shape import Shape
from support.runner.made_up_results import made_up_context, made_up_results

MS = st.floats(0.001, 1000)


@pytest.fixture
def at() -> AtContext:
    return made_up_context()


def test_a_prefill_has_a_speed(at: AtContext) -> None:
    assert at.prefill.tokens_per_second == 2000


def test_break_even_is_the_price_of_a_round_in_plain_rounds(at: AtContext) -> None:
    plain, round_ = at.rounds
    assert at.plain_round is plain
    assert (at.break_even_tau(plain), at.break_even_tau(round_)) == (1.0, 1.5)


def test_speeds_count_wall_time(at: AtContext) -> None:
    assert at.rounds[1].tokens_per_second(2.7) == 150
    assert at.plain_round.tokens_per_second(1.0) == pytest.approx(83.333, abs=1e-3)


def test_a_round_cannot_emit_more_than_its_drafts_and_the_bonus(at: AtContext) -> None:
    round_ = at.rounds[1]
    assert round_.tokens_per_second(3.0) is not None
    assert round_.tokens_per_second(3.1) is None


def test_a_drafter_without_a_head_drafts_beside_the_forwards(at: AtContext) -> None:
    without = replace(at, parts=tuple(p for p in at.parts if "draft" not in p.name))
    found = without.breakdown(at.rounds[1])
    assert (found.draft, found.reseed) == (0, 0)
    assert found.other == pytest.approx(17 - 13.2)


def test_a_round_is_taken_apart(at: AtContext) -> None:
    plain, round_ = map(at.breakdown, at.rounds)
    # The reseed gives the first of two drafts, so one step is left.
    expected = {"draft": 1.0, "verify": 13.2, "reseed": 2.0, "other": 0.8, "host": 1.0}
    assert asdict(round_) == pytest.approx(expected)
    expected = {"draft": 0.0, "verify": 11.0, "reseed": 0.0, "other": 0.5, "host": 0.5}
    assert asdict(plain) == pytest.approx(expected)


@given(verify=MS, step=MS, seed=MS, wall=MS, host=st.none() | MS, chain_len=st.sampled_from([0, 2]))
def test_the_parts_add_up_to_the_wall_time(
    verify: float, step: float, seed: float, wall: float, host: float | None, chain_len: int
) -> None:
    times = iter((verify, verify, verify, step, seed))
    made_up = made_up_context()
    parts = tuple(replace(part, ms=next(times)) for part in made_up.parts)
    round_ = RoundTimes(
        shape=Shape.chain(chain_len), wall_ms=wall, host_ms=host, launch_ms=host, floor=None
    )
    at = replace(made_up, parts=parts, rounds=(round_,))
    assert sum(asdict(at.breakdown(round_)).values()) == pytest.approx(wall)


def test_where_the_host_is_the_device_all_time_is_the_devices() -> None:
    round_ = RoundTimes(shape=Shape.chain(1), wall_ms=7.0, host_ms=None, launch_ms=None, floor=None)
    assert round_.device_ms == 7.0


def test_json_holds_figures_and_ratios() -> None:
    result = json.loads(json.dumps(to_json(made_up_results())))
    assert (result["read_gb_per_second"], result["cuda_graphs"]) == (2.0, True)
    assert result["prefill_chunk"] == {"tokens": 128, "ms": 32.0, "tokens_per_second": 4000.0}
    (at,) = result["contexts"]
    assert at["parts"][2] == {
        "name": "verify",
        "sequences": 1,
        "rows": 3,
        "ms": 13.2,
        "to_plain": pytest.approx(1.2),
        "floor_bytes": 10_800_000,
        "floor_ms": 5.4,
        "to_floor": pytest.approx(13.2 / 5.4),
    }
    assert at["parts"][3] | {"to_plain": 0} == {
        "name": "draft step", "sequences": 1, "rows": 1, "ms": 1.0, "to_plain": 0,
        "floor_bytes": None, "floor_ms": None, "to_floor": None,
    }  # fmt: skip


def test_json_projects_each_round() -> None:
    plain, round_ = to_json(made_up_results())["contexts"][0]["rounds"]
    assert plain["projections"] == [
        {"tau": 1.0, "tokens_per_second": pytest.approx(1e3 / 12), "speedup": 1.0}
    ]
    assert (round_["device_ms"], round_["host_ms"], round_["to_floor"]) == (17.0, 1.0, 2.5)
    assert (plain["launch_ms"], round_["launch_ms"]) == (0.25, 2.0)
    assert (plain["host_copies"], round_["host_copies"]) == (1.0, None)
    two, three, four = round_["projections"]
    assert two["speedup"] == pytest.approx(2 / 1.5)
    assert three == {"tau": 3.0, "tokens_per_second": pytest.approx(3e3 / 18), "speedup": 2.0}
    assert four == {"tau": 4.0, "tokens_per_second": None, "speedup": None}


def test_parts_are_found_by_name_and_rows(at: AtContext) -> None:
    assert at.part(VERIFY, 3) == Part(name=VERIFY, rows=3, ms=13.2, floor=at.parts[2].floor)
