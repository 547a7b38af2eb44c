"""The child process: damages, reads, and says what happened, one line of JSON per event."""

import json
import logging
import os
import resource
import shutil
import sys
import traceback
import warnings
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import TextIO

from eagle_aot.common.errors import EagleError
from fuzz.damage import damaged
from fuzz.readers import READERS

MORE_MEMORY = 2 << 30  # bytes of addresses beyond what the imports took: absurd sizes must not fit


@dataclass(frozen=True)
class Case:
    """One damaged file. Its number and the run's seed decide everything about it."""

    number: int
    reader: str
    file: str
    where: str


def work(seed: int, first: int, seeds: Path, only: str, workplace: Path) -> None:
    """Go through cases for ever, from the number `first` on."""
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no event
    quiet()
    limit_memory()
    readers = sorted(f.name for f in seeds.iterdir() if only in f.name and f.name in READERS)
    for number in count(first):
        run_case(number, seed, seeds, readers, workplace, events)


def run_case(
    number: int, seed: int, seeds: Path, readers: list[str], workplace: Path, events: TextIO
) -> None:
    """Damage one file of one folder of seeds, and read the folder."""
    random = Random(f"{seed}/{number}")
    reader = random.choice(readers)
    directory = workplace / "case"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(seeds / reader, directory)
    path = random.choice(sorted(directory.iterdir()))
    other = random.choice(sorted(path for path in seeds.rglob("*") if path.is_file()))
    content = damaged(path.name, path.read_bytes(), other.read_bytes(), random)
    path.unlink()  # not written over: an earlier case may still have it mapped
    path.write_bytes(content)
    say(events, "start", asdict(Case(number, reader, path.name, str(directory))))
    error = outcome(reader, directory)
    say(events, "end", {"error": error})
    if error is not None:
        sys.stdin.readline()  # until the parent has kept the file


def outcome(reader: str, directory: Path) -> str | None:
    """None for a success or a refusal; anything else is a finding: its type, text and place."""
    try:
        READERS[reader](directory)
    except EagleError:
        return None
    except BaseException as error:  # a panic of native code is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        frame = next(f for f in reversed(traceback.extract_tb(error.__traceback__)))
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "eagle_aot" in f.filename]
        own = ours[-1] if ours else frame
        place = f"{Path(own.filename).name}:{own.lineno} {own.name}"
        return f"{type(error).__name__} at {place}: {str(error)[:300]}"
    return None


def say(events: TextIO, event: str, details: dict[str, object]) -> None:
    """One event to the parent."""
    print(json.dumps({"event": event, **details}), file=events, flush=True)


def quiet() -> None:
    """As the commands are."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def limit_memory() -> None:
    """Let absurd sizes fail at once instead of taking the machine's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
