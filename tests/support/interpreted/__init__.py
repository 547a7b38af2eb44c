"""Tests of kernels in Triton's interpreter, run in a process of their own.

TRITON_INTERPRET must be set before triton is imported.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
HELPERS = {"__init__", "as_a_gpu", "conftest"}
SUITES = sorted({path.stem for path in HERE.glob("*.py")} - HELPERS)


def run_interpreted(suites: Sequence[str], report: Path) -> dict[str, list[str]]:
    """Run the test modules `suites` of this folder in one process.

    Returns the failure of each test by suite, an empty string for a test that passed. `report` is
    the path of a JUnit file to write.
    """
    run = subprocess.run(
        [sys.executable, "-m", "pytest", f"--junitxml={report}"]
        + [str(HERE / f"{name}.py") for name in suites],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr  # 1: a test failed
    failures: dict[str, list[str]] = {name: [] for name in suites}
    for test in ElementTree.parse(report).iter("testcase"):
        suite = test.attrib["classname"].rpartition(".")[2]
        failures[suite].append("\n".join(element.text or element.tag for element in test))
    return failures
