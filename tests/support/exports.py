"""Artifacts that tests share, exported by processes beside them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from click.testing import CliRunner

AT_ONCE = 2
"""Exports that run at a time: more take the cores from one another, and all are late."""

TINY = "--target-model", "gemma4-tiny"
QUICK = "--max-seq-len", "192", "--no-self-test"
CUDA = *TINY, "--backend", "cuda", "--max-seq-len", "4608"
SHIPPED: dict[str, tuple[str, ...]] = {
    "tiny": (*TINY, "--max-batch-size", "4"),
    "int4_head": (*TINY, "--no-self-test", "--draft-quant", "int4"),
}
"""Exports of the shipped pair, and their options beside the backend."""

OF_PAIRS = {
    "batch": (
        *("random_pair", "gemma4-31b", *QUICK),
        *("--max-batch-size", "4", "--cpu-weights", "int4"),
    ),
    "qwen3": ("qwen3_pair", "auto", *QUICK, "--cpu-weights", "int8"),
    "assistant": ("assistant_pair", "auto", *QUICK, "--max-batch-size", "2"),
    "image": (
        *("image_pair", "auto", "--max-seq-len", "320", "--no-self-test"),
        *("--inputs", "text,image", "--max-batch-size", "2"),
    ),
    "experts": ("experts_pair", "auto", *QUICK, "--max-batch-size", "4"),
    "experts_int8": ("experts_pair", "auto", *QUICK, "--cpu-weights", "int8"),
    "experts_int4": ("experts_pair", "auto", *QUICK, "--cpu-weights", "int4"),
    "hybrid": (
        *("hybrid_pair", "auto", "--max-seq-len", "640", "--no-self-test"),
        *("--max-batch-size", "4"),
    ),
    "dflash2": ("dflash2_pair", "auto", *QUICK, "--max-batch-size", "2"),
    "dspark": ("dspark_pair", "auto", *QUICK, "--max-batch-size", "4"),
}
"""Exports of pairs that tests write: the fixture of the pair, `--target-model`, and options."""


def export_program() -> str:
    """Return the `eagle-export` of this environment, or the one on PATH."""
    beside = Path(sys.executable).with_name("eagle-export")
    return str(beside) if beside.exists() else "eagle-export"


class Exports:
    """`eagle-export`s in other processes, begun in turn as soon as this is made.

    Two processes make one after another, since importing what an export needs takes as long as a
    small one; commands of their own are those of another environment, and for a GPU.
    """

    def __init__(
        self,
        directory: Path,
        requested: Mapping[str, Sequence[str]],
        environments: Mapping[str, Mapping[str, str]],
    ) -> None:
        """`requested` are the options of each, in the order in which they are needed;
        `environments` those of exports that have another one than this process."""
        self.directory = directory
        self.environments = environments
        self.processes: list[subprocess.Popen[str]] = []
        self.exporters = SimpleQueue[subprocess.Popen[str]]()
        for _ in range(min(AT_ONCE, len(requested))):
            self.exporters.put(self._start([sys.executable, "-P", __file__], None))
        self.pool = ThreadPoolExecutor(AT_ONCE)
        self.found = {
            name: self.pool.submit(self._export, name, options)
            for name, options in requested.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def wait(self, name: str) -> Path:
        """The artifact's directory, once it is there."""
        return self.found[name].result()

    def stop(self) -> None:
        """End what still runs, and begin nothing more."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in self.processes:
            process.kill()

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str] | None
    ) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
        )
        self.processes.append(process)
        return process

    def _export(self, name: str, options: Sequence[str]) -> Path:
        output_dir = self.directory / name
        arguments = ["--output-dir", str(output_dir), *options]
        if name in self.environments or "cuda" in options:
            process = self._start([export_program(), *arguments], self.environments.get(name))
            output, errors = process.communicate()
            code = process.returncode
        else:
            code, output, errors = self._exported_by_one_of_several(arguments)
        assert code == 0, errors
        assert output.startswith(str(output_dir))
        return output_dir

    def _exported_by_one_of_several(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        """Return the exit code of an export, and what it printed to stdout and to stderr."""
        exporter = self.exporters.get()
        assert exporter.stdin is not None and exporter.stdout is not None
        try:
            exporter.stdin.write(json.dumps(arguments) + "\n")
            exporter.stdin.flush()
            code, output, errors = json.loads(exporter.stdout.readline())
        finally:
            self.exporters.put(exporter)
        return code, output, errors


def export_in_turn() -> None:
    """Run an `eagle-export` for each line of standard input, which are its arguments."""
    from eagle_aot.export.cli import main  # only in processes that export

    answers = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what libraries print
    os.dup2(null, 2)
    for line in sys.stdin:
        done = CliRunner().invoke(main, json.loads(line))
        raised = done.exception
        failure = "" if raised is None or isinstance(raised, SystemExit) else repr(raised)
        print(
            json.dumps([done.exit_code, done.stdout, done.stderr + failure]),
            file=answers,
            flush=True,
        )


if __name__ == "__main__":
    export_in_turn()
