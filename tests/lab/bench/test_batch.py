"""`eagle-bench` with `--part batch`, `--part prefix` and `--part images`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eagle_aot.lab.bench import constraints, images, prefix
from eagle_aot.lab.bench.batch import BatchBenchSpec, BatchTimes, main, whole_round
from eagle_aot.lab.bench.prefix import random_prompts
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from support.refusals import refuses
from support.runner.logging_executor import CONSTANTS, LoggingExecutor

LINE = BatchTimes(
    context=1024, batch_size=4, chain_len=2, round_ms=9.0, device_ms=8.0, launch_ms=0.5,
    engine_ms=1.0, of_one=3.0, break_even_tau=1.5,
)  # fmt: skip


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_speeds_are_those_of_whole_steps() -> None:
    assert LINE.tokens_per_second(3) == 1e3 * 4 * 3 / 10
    assert LINE.tokens_per_second(3.1) is None
    assert LINE.host_share == pytest.approx(0.2)
    assert replace(LINE, device_ms=None).host_share == pytest.approx(0.1)


def test_all_shapes_are_compared_with_one_request_and_plain_rounds(batch_artifact: Path) -> None:
    chosen = ("--batch-sizes", "3", "--chain-lens", "2", "--contexts", "40,100", "--tau", "1,2.5")
    done = run(batch_artifact, *chosen, "--repeats", "1", "--json")
    assert done.exit_code == 0, done.output
    lines = json.loads(done.stdout)["lines"]
    shapes = [(n["context"], n["batch_size"], n["chain_len"]) for n in lines]
    assert shapes == [(c, b, k) for c in (40, 100) for b in (1, 3) for k in (0, 2)]
    for one, of_one, plain in ((0, 0, 0), (1, 1, 0), (2, 0, 2), (3, 1, 2), (7, 5, 6)):
        line, step = lines[one], [n["round_ms"] + n["engine_ms"] for n in lines]
        assert line["of_one"] == pytest.approx(line["batch_size"] * step[of_one] / step[one])
        assert line["break_even_tau"] == pytest.approx(step[one] / step[plain])
        assert line["device_ms"] is line["launch_ms"] is None
        assert 0 < line["host_share"] < 1
        speeds = [p["tokens_per_second"] for p in line["projections"]]
        assert speeds[0] == pytest.approx(1e3 * line["batch_size"] / step[one])
        assert (speeds[1] is None) == (line["chain_len"] == 0)


def test_a_table_for_a_reader(batch_artifact: Path) -> None:
    done = run(batch_artifact, "--batch-sizes", "2", "--contexts", "40", "--repeats", "1")
    assert done.exit_code == 0, done.output
    assert "40 tokens of context each" in done.stdout and "tau 4" in done.stdout


def test_lengths_beyond_the_artifact_are_refused(batch_artifact: Path) -> None:
    refuses(run(batch_artifact, "--batch-sizes", "5"), "--batch-sizes 5: this artifact takes 1")
    refuses(run(batch_artifact, "--chain-lens", "16", "--batch-sizes", "1"), "takes 1 to 15")
    too_long = run(batch_artifact, "--batch-sizes", "1", "--contexts", "1024")
    refuses(too_long, "--contexts 1024: this artifact takes 1")


@pytest.mark.parametrize(
    ("limit", "expected"), [(9000, (1024, 8192)), (2000, (1024,)), (200, (92,))]
)
def test_default_contexts_are_those_that_fit(limit: int, expected: tuple[int, ...]) -> None:
    spec = BatchBenchSpec(artifact=Path(), batch_sizes=(1,))
    assert spec.fitted(replace(CONSTANTS, max_seq_len=limit)).contexts == expected


def test_rounds_with_more_drafts_than_rows_are_left_out() -> None:
    executor, constants = LoggingExecutor(), replace(CONSTANTS, max_batch_size=8, max_step_rows=64)
    runner = Runner(Path(), executor, constants, Eagle3Drafter(executor, constants, None))
    assert whole_round(runner, 8, 7) is not None and whole_round(runner, 8, 8) is None


def test_prompts_share_their_prefix_alone() -> None:
    prompts = random_prompts(3, 20, 5, 1000)
    assert all(prompt[:20] == prompts[0][:20] for prompt in prompts)
    assert len({tuple(prompt[20:]) for prompt in prompts}) == 3


@pytest.mark.artifact
def test_reuse_caches_the_prefix_and_changes_no_token(batch_artifact: Path) -> None:
    chosen = ["--requests", "4", "--prefix", "100", "--max-new-tokens", "4", "--repeats", "1"]
    done = CliRunner().invoke(prefix.main, [str(batch_artifact), *chosen, "--json"])
    assert done.exit_code == 0, done.output
    without, with_reuse = json.loads(done.stdout)["lines"]
    assert (without["reuse"], without["cached_tokens"]) == (False, 0)
    assert (with_reuse["reuse"], with_reuse["cached_tokens"]) == (True, 3 * 99)
    assert with_reuse["tokens"] == without["tokens"]
    shown = CliRunner().invoke(prefix.main, [str(batch_artifact), *chosen])
    assert shown.exit_code == 0 and "cached" in shown.stdout
    refused = CliRunner().invoke(prefix.main, [str(batch_artifact), "--prefix", "100000"])
    assert refused.exit_code == 1


@pytest.mark.artifact
def test_images_and_prompts_are_timed(image_artifact: Path, batch_artifact: Path) -> None:
    chosen = ["--images", "1,3", "--repeats", "1"]
    done = CliRunner().invoke(images.main, [str(image_artifact), *chosen, "--json"])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    (encoded,) = results["encoded"]
    assert encoded["rows"] == 70 and encoded["seconds"] > encoded["floor"] > 0
    assert [(one["images"], one["tokens"]) for one in results["prompts"]] == [(1, 106), (3, 238)]
    shown = CliRunner().invoke(images.main, [str(image_artifact), *chosen])
    assert shown.exit_code == 0 and "times the floor" in shown.stdout
    refused = CliRunner().invoke(images.main, [str(image_artifact), "--images", "100"])
    assert refused.exit_code == 1
    text = CliRunner().invoke(images.main, [str(batch_artifact)])
    assert text.exit_code == 1 and "takes text alone" in text.output


def test_constraints_are_timed_in_rounds_of_every_size(tiny_artifact: Path) -> None:
    arguments = [str(tiny_artifact), "--context", "40", "--repeats", "1", "--json"]
    done = CliRunner().invoke(constraints.main, arguments)
    assert done.exit_code == 0, done.output
    lines = json.loads(done.stdout)["lines"]
    assert [line["rows"] for line in lines if line["requests"] == 1] == [5, 8, 32, 64]
    times = [line[f"{kind}_ms"] for line in lines for kind in constraints.KINDS]
    assert all(ms > 0 for ms in times)
    done = CliRunner().invoke(constraints.main, [str(tiny_artifact), "--context", "100000"])
    assert done.exit_code == 1 and "--context 100000: this artifact takes" in done.stderr
