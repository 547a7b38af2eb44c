"""The lines above a printed result: when, where, of what and how it was made."""

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
from eagle_aot.artifact.manifest import installed_versions


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Where a result comes from: `device` with its driver, `subject` is what was measured."""

    date: str
    device: str
    versions: dict[str, str]
    commit: str
    command: str
    subject: str


def header(subject: str, commit: str | None) -> Header:
    """Return this process's header; `commit` is git's for None."""
    package = Path(eagle_aot.__file__).resolve().parent
    described = output_of(
        "git", "-C", str(package), "describe", "--always", "--dirty", "--exclude=*"
    )
    return Header(
        date=datetime.now(UTC).date().isoformat(),
        device=device_and_driver(),
        versions={**installed_versions(), "python": platform.python_version()},
        commit=commit or described,
        command=shlex.join(["python", *sys.argv]),
        subject=subject,
    )


def device_and_driver() -> str:
    """Return the current GPU and its driver, or the CPU."""
    if not torch.cuda.is_available():
        return device_name(torch.device("cpu"))
    driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return f"{torch.cuda.get_device_name()}, {driver.splitlines()[0]}"


def device_name(device: torch.device) -> str:
    """Return a device's own name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def output_of(*command: str) -> str:
    """Return what a command prints, "unknown" where it does not exist or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def title_lines(head: Header) -> Iterator[str]:
    """Yield the lines above a result, as rich markup."""
    yield escape(head.device)
    yield " ".join(f"{name} {version}" for name, version in head.versions.items())
    yield f"{head.date}\neagle-aot at {head.commit}\n\n$ {escape(head.command)}"
