"""A pair whose CUDA methods are lowered in no time, here or in processes beside this one.

As a program it lowers until it is killed: `python -m support.small_lowering DIRECTORY`.
"""

import os
import signal
import sys
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import torch
from torch.export import ExportedProgram
from tqdm import tqdm

from eagle_aot.artifact import COPY_ROWS, PREFILL, TARGET_VERIFY
from eagle_aot.common.progress import Progress
from eagle_aot.export import ExportSpec, resolve_checkpoints
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.loading.load import load_pair
from eagle_aot.export.lowering.side_by_side import processes
from eagle_aot.export.methods import method_specs
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.export.spec import CUDA
from eagle_aot.export.trace import traced
from eagle_aot.targets.decoder.kv_cache import CacheSpec

SEQUENCES = 2
LENGTHS = method_lengths(128, 256, 64, SEQUENCES)
METHODS = [PREFILL, TARGET_VERIFY, COPY_ROWS]
PID = "pid"


def small_pair() -> Pair:
    """One random layer, without a head."""
    checkpoints = resolve_checkpoints(
        ExportSpec(target_model="gemma4-tiny", load_format="dummy", dummy_layers=1, drafter="ngram")
    )
    sizes = CacheSpec(256, torch.bfloat16, SEQUENCES, on_host=True)
    return pack_int4(load_pair(checkpoints, torch.bfloat16, sizes).pair, 132)


def small_programs(pair: Pair) -> dict[str, ExportedProgram]:
    return traced(method_specs(pair, LENGTHS, splits_keys=True), SEQUENCES, CUDA)


def beside(pair: Pair, directory: Path, progress: Progress) -> AbstractContextManager[None]:
    """Lowers the pair's methods in a process of their own, in a directory within this one."""
    return processes.lowered_beside(
        METHODS,
        pair,
        LENGTHS,
        splits_keys=True,
        jobs=1,  # each takes ten seconds to import what it needs
        gpu_memory=None,
        directory=directory / "beside",
        progress=progress,
    )


def lower_for_ever(file: Path, name: str, place: int) -> None:
    """Write into the file in which process, which shows progress to nobody, as Inductor does."""
    tqdm(disable=True)
    file.write_text(f"{os.getpid()}\n")
    time.sleep(600)


def main(directory: Path) -> None:
    """Lower for ever; the file `PID` says in which process."""
    # What a shell runs in the background is not interrupted unless it asks to be.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    processes.lower_method = partial(lower_for_ever, directory / PID)  # type: ignore[assignment]
    with beside(small_pair(), directory, Progress()):
        time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
