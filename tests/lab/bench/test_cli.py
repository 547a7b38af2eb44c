"""`eagle-bench` from end to end on the CPU, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from eagle_aot.lab.bench import rounds
from eagle_aot.lab.bench.cli import PARTS, main
from support.refusals import beside_stages, refuses

QUICK = ("--repeats", "1", "--chain-lens", "1,3", "--tau", "1.5,4", "--contexts", "20,200")
ROUNDS_OPTIONS = {
    "artifact", "--part", "--contexts", "--chain-lens", "--tree", "--drafter", "--rows",
    "--batch-sizes", "--tau", "--repeats", "--executor", "--no-cuda-graph", "--json", "--commit",
    "--version", "--kv-cache-memory",
}  # fmt: skip
FIELDS = {
    "artifact", "executor", "cuda_graphs", "device", "drafter", "versions", "repeats", "taus",
    "read_gb_per_second", "peak_memory_bytes", "caches", "more_sequences_fitting",
    "prefill_chunk", "contexts",
}  # fmt: skip
ROUND_FIELDS = {
    "chain_len", "tree", "wall_ms", "device_ms", "host_ms", "launch_ms", "breakdown_ms",
    "to_plain", "floor_bytes", "floor_ms", "to_floor", "host_copies", "break_even_tau",
    "projections",
}  # fmt: skip


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def measured(tiny_artifact: Path) -> dict[str, Any]:
    """Return the JSON of a run as a user would start it."""
    command = Path(sys.executable).with_name("eagle-bench")
    done = subprocess.run(
        [command, tiny_artifact, *QUICK, "--json"], capture_output=True, text=True
    )
    assert (done.returncode, beside_stages(done.stderr)) == (0, "")
    return json.loads(done.stdout)


def test_rounds_options_are_frozen() -> None:
    run("--help")  # adds --part
    assert {opt for param in rounds.main.params for opt in param.opts} == ROUNDS_OPTIONS


@pytest.mark.parametrize("part", PARTS)
def test_every_part_has_a_command_with_help(part: str) -> None:
    result = run("--part", part, "--help")
    assert result.exit_code == 0 and f"--part {part}" in result.output
    assert all(name in result.output for name in PARTS)


def test_unknown_part_is_wrong_usage() -> None:
    result = run("a", "--part=nothing")
    assert result.exit_code == 2 and "--part 'nothing': must be one of rounds, " in result.stderr
    result = CliRunner().invoke(main, ["--part", "round"])
    assert result.stderr.endswith("kernels; did you mean rounds?\n")


def test_json_has_exactly_the_documented_fields(measured: dict[str, Any]) -> None:
    result = measured
    assert set(result) == FIELDS
    assert (result["executor"], result["cuda_graphs"]) == ("executorch", False)
    assert (result["repeats"], result["taus"]) == (1, [1.5, 4.0])
    assert set(result["peak_memory_bytes"]) == {"process"}
    assert result["peak_memory_bytes"]["process"] > 50e6
    assert result["caches"]["bytes"] == 4 * result["caches"]["bytes_of_a_sequence"]
    assert result["more_sequences_fitting"] > 0
    assert result["read_gb_per_second"] > 0
    assert result["prefill_chunk"]["tokens"] == 96
    assert [at["context"] for at in result["contexts"]] == [20, 200]
    for at in result["contexts"]:
        assert set(at) == {"context", "prefill", "parts", "rounds"}
        assert [round_["chain_len"] for round_ in at["rounds"]] == [0, 1, 3]
        assert all(set(round_) == ROUND_FIELDS for round_ in at["rounds"])


def test_every_forward_is_there_without_a_floor(measured: dict[str, Any]) -> None:
    for at in measured["contexts"]:
        parts = {(part["name"], part["rows"]) for part in at["parts"]}
        drafts = {("draft step", 1), ("reseed", 2), ("reseed", 4)}
        assert (
            parts == {("plain decode", 1)} | {("verify", t) for t in (2, 4, 8, 16, 32, 64)} | drafts
        )
        assert all(part["ms"] > 0 and part["to_floor"] is None for part in at["parts"])


def test_ratios_are_those_of_the_times(measured: dict[str, Any]) -> None:
    for at in measured["contexts"]:
        plain, plain_round = at["parts"][0], at["rounds"][0]
        for part in at["parts"]:
            assert part["to_plain"] == pytest.approx(part["ms"] / plain["ms"])
        for round_ in at["rounds"]:
            assert sum(round_["breakdown_ms"].values()) == pytest.approx(round_["wall_ms"])
            price = round_["wall_ms"] / plain_round["wall_ms"]
            assert round_["break_even_tau"] == pytest.approx(price)
            assert round_["host_ms"] is round_["launch_ms"] is round_["host_copies"] is None
            for projected in round_["projections"]:
                check_projection(round_, projected)


def check_projection(round_: dict[str, Any], projected: dict[str, Any]) -> None:
    """Either both figures or none."""
    tau = projected["tau"]
    if tau > round_["chain_len"] + 1:
        assert projected["tokens_per_second"] is projected["speedup"] is None
        return
    assert projected["tokens_per_second"] == pytest.approx(1e3 * tau / round_["wall_ms"])
    assert projected["speedup"] == pytest.approx(tau / round_["break_even_tau"])


def test_rounds_without_the_head_are_timed(tiny_artifact: Path) -> None:
    done = run(tiny_artifact, *QUICK, "--json", "--drafter", "ngram")
    assert (done.exit_code, beside_stages(done.stderr)) == (0, "")
    result = json.loads(done.stdout)
    assert result["drafter"] == "ngram"
    for at in result["contexts"]:
        assert {part["name"] for part in at["parts"]} == {"plain decode", "verify"}
        for round_ in at["rounds"]:
            parts = round_["breakdown_ms"]
            assert parts["draft"] == parts["reseed"] == 0
            assert sum(parts.values()) == pytest.approx(round_["wall_ms"])


def test_tables_go_to_stdout(tiny_artifact: Path) -> None:
    result = run(tiny_artifact, *QUICK[:-1], "30")
    assert (result.exit_code, beside_stages(result.stderr)) == (0, "")
    for words in ("plain decode", "reseed", "K = 3", "30 tokens of context", "at tau 1.5"):
        assert words in result.stdout


@pytest.mark.parametrize(("arguments", "message"), [
    (["--contexts", "129"], "--contexts 129: this artifact takes 1 to 128"),
    (["--tau", "0"], "--tau 0.0: a round emits at least 1 token"),
    (["--executor", "aoti"], "does not run xnnpack artifacts"),
])  # fmt: skip
def test_wrong_arguments_are_refused_in_one_line(
    batch_artifact: Path, arguments: list[str], message: str
) -> None:
    refuses(run(batch_artifact, *arguments), message)


def test_no_artifact(tmp_path: Path) -> None:
    refuses(run(tmp_path / "none"), "no such artifact directory")
    refuses(run(tmp_path), "not an artifact (no manifest.json)")


def test_wrong_usage_exits_with_two(batch_artifact: Path) -> None:
    for wrong in (["--what"], ["--repeats", "0"], ["--contexts", "long"], ["--tau", "two"]):
        assert run(batch_artifact, *wrong).exit_code == 2
