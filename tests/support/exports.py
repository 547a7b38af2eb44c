"""Artifacts that tests share, exported by commands beside them."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_ONCE = 2
"""Commands that run at a time: more take the cores from one another, and all are late."""

TINY = "--target-model", "gemma4-tiny"
LENGTH = "--max-seq-len", "192"
QUICK = *LENGTH, "--no-self-test"
CUDA = *TINY, "--backend", "cuda", "--max-seq-len", "4608"
SHIPPED: dict[str, tuple[str, ...]] = {
    "tiny": TINY,
    "int4_head": (*TINY, "--no-self-test", "--draft-quant", "int4", "--max-batch-size", "4"),
}
"""Exports of the shipped pair, and their options beside the backend."""

OF_PAIRS = {
    "random": ("random_pair", "gemma4-31b", *QUICK, "--table-quant", "int8"),
    "batch": (
        *("random_pair", "gemma4-31b", *QUICK),
        *("--max-batch-size", "4", "--cpu-weights", "int4"),
    ),
    "qwen3": ("qwen3_pair", "auto", *LENGTH, "--cpu-weights", "int8"),
    "assistant": ("assistant_pair", "auto", *QUICK, "--max-batch-size", "2"),
    "image": (
        *("image_pair", "auto", "--max-seq-len", "320", "--no-self-test"),
        *("--inputs", "text,image", "--max-batch-size", "2"),
    ),
    "experts": ("experts_pair", "auto", *QUICK, "--max-batch-size", "4"),
    "hybrid": (
        *("hybrid_pair", "auto", "--max-seq-len", "640", "--no-self-test"),
        *("--max-batch-size", "4"),
    ),
    "dflash2": ("dflash2_pair", "auto", *QUICK, "--max-batch-size", "2"),
    "dspark": ("dspark_pair", "auto", *QUICK, "--max-batch-size", "4"),
}
"""Exports of pairs that tests write: the fixture of the pair, `--target-model`, and options."""


class Exports:
    """`eagle-export`s in processes of their own, begun in turn as soon as this is made."""

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

    def _export(self, name: str, options: Sequence[str]) -> Path:
        output_dir = self.directory / name
        beside = Path(sys.executable).with_name("eagle-export")
        program = beside if beside.exists() else "eagle-export"
        process = subprocess.Popen(
            [program, "--output-dir", output_dir, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environments.get(name),
        )
        self.processes.append(process)
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        assert output.startswith(str(output_dir))
        return output_dir
