"""What `scripts/check_gpu` writes, and how old the run is that its results are from."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GPU = ROOT / "benchmarks" / "results" / "gpu.md"
COMMIT = re.compile(r"^Commit ([0-9a-f]{7,40})(?:-dirty)?, \d{4}-\d\d-\d\d, ", re.MULTILINE)
MOST = 100  # commits


def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_the_gpu_tests_ran_at_a_recent_commit() -> None:
    """CI has no GPU: what needs one runs by hand."""
    if run("git", "rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("there is no git history here to count commits in")
    match = COMMIT.search(GPU.read_text())
    assert match is not None, f"{GPU}: names no commit"
    count = run("git", "rev-list", "--count", f"{match[1]}..HEAD")
    assert count.returncode == 0, f"{GPU}: {match[1]} is no commit: {count.stderr}"
    assert int(count.stdout) <= MOST, (
        f"{GPU} is {count.stdout.strip()} commits old: run scripts/check_gpu where there is a GPU"
    )


def test_the_summary_names_its_commit_and_each_step(tmp_path: Path) -> None:
    steps = "export-tiny: exit code 0, 156 s\nend-to-end: exit code 1, 553 s\n"
    (tmp_path / "steps.txt").write_text(steps)
    done = run("scripts/check_gpu", str(tmp_path), "--summary", COMMIT="c598bb67")
    assert done.returncode == 0, done.stderr
    summary = (tmp_path / "gpu.md").read_text()
    match = COMMIT.search(summary)
    assert match is not None and match[1] == "c598bb67"
    assert summary.splitlines()[-2:] == ["| export-tiny | 0 | 156 |", "| end-to-end | 1 | 553 |"]
    assert (tmp_path / "steps.txt").read_text() == steps
