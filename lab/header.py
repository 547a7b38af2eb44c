"""What a printed result says of itself: when, where, of what and how it was made."""

import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.markup import escape

import eagle_aot
from eagle_aot.artifact.versions import installed_versions
from eagle_aot.lab.bench.measure import device_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What was measured where: `device` with its driver, `subject` what was measured, in a few
    words."""

    date: str
    device: str
    versions: dict[str, str]
    commit: str
    command: str
    subject: str


def header(subject: str, commit: str | None) -> Header:
    """Of this process. `commit` is taken from the package's git where it is not given."""
    where = Path(eagle_aot.__file__).resolve().parent
    found = said("git", "-C", str(where), "describe", "--always", "--dirty", "--exclude=*")
    return Header(
        date=datetime.now(UTC).date().isoformat(),
        device=gpu() if torch.cuda.is_available() else device_name(torch.device("cpu")),
        versions={**installed_versions(), "python": platform.python_version()},
        commit=commit or found,
        command=shlex.join(["python", *sys.argv]),
        subject=subject,
    )


def gpu() -> str:
    """The current one and its driver."""
    driver = said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return f"{torch.cuda.get_device_name()}, {driver.partition(chr(10))[0]}"


def said(*command: str) -> str:
    """What a command prints, `unknown` where there is none or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def title_lines(head: Header) -> Iterator[str]:
    """The lines above a result, as rich markup."""
    yield escape(head.device)
    yield " ".join(f"{name} {version}" for name, version in head.versions.items())
    yield f"{head.date}\neagle-aot at {head.commit}\n\n$ {escape(head.command)}"
