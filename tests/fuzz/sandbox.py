"""Read a folder and report the outcome: here, or in a process that may crash, hang or swell."""

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import resource
import signal
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from eagle_aot.common.errors import EagleError

READ, REFUSED = "read", "refused"
MORE_MEMORY = 2 << 30  # bytes of addresses beyond what the imports took: absurd sizes must not fit

Reader = Callable[[Path], None]


def outcome(read: Reader, directory: Path) -> str:
    """Return READ or REFUSED; anything else is a finding: its type, place and text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as the commands do
            read(directory)
    except EagleError:
        return REFUSED
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of native code is no Exception
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "eagle_aot" in frame.filename] or frames
        place = f"{Path(own[-1].filename).name}:{own[-1].lineno} {own[-1].name}"
        return f"{type(error).__name__} at {place}: {str(error)[:300]}"
    return READ


def outcome_apart(read: Reader, directory: Path, seconds: float = 60) -> str:
    """Return the outcome in a fork with limits, whose death is a finding too."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_work, args=(read, directory, seconds, sender))
    child.start()
    sender.close()
    with contextlib.suppress(EOFError):
        return str(receiver.recv())
    child.join()
    return "hangs" if child.exitcode == -signal.SIGALRM else f"died with {child.exitcode}"


def _work(read: Reader, directory: Path, seconds: float, sender: Connection) -> None:
    faulthandler.disable()
    signal.setitimer(signal.ITIMER_REAL, seconds)  # its alarm is not handled
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    logging.disable(logging.WARNING)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    sender.send(outcome(read, directory))
