"""Feed damaged files to everything that reads files; anything but a stated refusal is a finding.

Seeds are small valid files. A child process reads, so that a crash of native code or a hang is a
finding too. Exits with 1 when there are findings.
"""

import json
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from eagle_aot.common.command import eagle_command

SEEDS = Path(__file__).resolve().parents[1] / "data" / "fuzz" / "seeds"
MOST_SECONDS = 60.0  # of one case, the first of a child with all of its imports included


@dataclass
class Run:
    """One fuzzing run: what it has seen, and where it puts what it found."""

    seed: int
    seeds: Path
    only: str
    findings: Path
    workplace: Path
    cases: int = 0
    next_number: int = 0
    readers: Counter[str] = field(default_factory=Counter)
    found: dict[str, str] = field(default_factory=dict)
    case: dict[str, Any] | None = None

    def go(self, minutes: float) -> None:
        """Start children until the time is over; each works until it dies or hangs."""
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            self._watch(self._start(), end)

    def _start(self) -> "subprocess.Popen[str]":
        body = (
            "import sys; from pathlib import Path; from fuzz.worker import work; "
            "work(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], "
            "Path(sys.argv[5]))"
        )
        place = str(self.workplace)
        arguments = [str(self.seed), str(self.next_number), str(self.seeds), self.only, place]
        return subprocess.Popen(
            [sys.executable, "-c", body, *arguments],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _watch(self, child: "subprocess.Popen[str]", end: float) -> None:
        """Follow a child; its death or silence within a case is a finding."""
        assert child.stdout is not None and child.stdin is not None
        self.case = None
        while time.monotonic() < end:
            if not select.select([child.stdout], [], [], MOST_SECONDS)[0]:
                self._keep("hangs")
                break
            line = child.stdout.readline()
            if not line:
                self._keep(f"died with {child.wait()}")
                break
            if self._take(json.loads(line)):
                print(file=child.stdin, flush=True)
        child.kill()
        child.communicate()

    def _take(self, event: dict[str, Any]) -> bool:
        """Count a case or keep what it found; whether the child waits for that."""
        if event["event"] == "start":
            self.case, self.next_number = event, event["number"] + 1
            self.cases += 1
            self.readers[event["reader"]] += 1
            return False
        if event["error"] is not None:
            self._keep(event["error"])
        self.case = None
        return event["error"] is not None

    def _keep(self, error: str) -> None:
        """Copy the damaged file of a new kind of finding."""
        if self.case is None:
            raise RuntimeError(f"the child {error} outside of any case")
        reader, name, number = (self.case[key] for key in ("reader", "file", "number"))
        kind = f"{reader} {error.partition(': ')[0]}"
        if kind in self.found:
            return
        self.found[kind] = error
        place = self.findings / f"{reader}-{self.seed}-{number}"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(self.case["where"]) / name, place / name)
        (place / "error.txt").write_text(error + "\n")
        click.echo(f"{place}: {name}: {error}")


@eagle_command
@click.option("--minutes", type=float, default=5.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--only", default="", metavar="NAME", help="Readers whose name holds this.")
@click.option("--artifact", type=click.Path(path_type=Path), help="Fuzz its manifest instead.")
@click.option("--findings", type=click.Path(path_type=Path), default=Path("fuzz-findings"))
def main(minutes: float, seed: int, only: str, artifact: Path | None, findings: Path) -> None:
    """Damage files for MINUTES and keep what breaks a reader."""
    with tempfile.TemporaryDirectory(prefix="fuzz-seeds-") as place:
        seeds = Path(shutil.copytree(SEEDS, Path(place) / "seeds"))
        if artifact is not None:
            shutil.copyfile(artifact / "manifest.json", seeds / "artifact" / "manifest.json")
        run = Run(seed, seeds, only, findings, Path(place))
        run.go(minutes)
    counts = ", ".join(f"{name} {count}" for name, count in sorted(run.readers.items()))
    click.echo(f"{run.cases} cases in {minutes:g} minutes, seed {seed}: {counts}")
    click.echo(f"{len(run.found)} kinds of findings")
    sys.exit(bool(run.found))


if __name__ == "__main__":
    main()
