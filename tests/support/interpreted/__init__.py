"""Tests of kernels in Triton's interpreter, each run in a process of its own.

TRITON_INTERPRET must be set before triton is imported.
"""

import os
import subprocess
import sys
from pathlib import Path


def run_interpreted(name: str) -> None:
    """Run the tests of the module of that name here; fail with their output where any fails."""
    suite = Path(__file__).with_name(f"{name}.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", str(suite)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=suite.parents[3],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and " passed" in run.stdout, run.stdout + run.stderr
