"""A program of `target_verify` alone: the project's own export and executor, narrowed to it.

All that depends on the insides of the package is here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from eagle_aot.artifact import TARGET_VERIFY, Constants, Manifest
from eagle_aot.common.progress import Progress
from eagle_aot.export import methods, pipeline
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.loading.load import load_by_gpu
from eagle_aot.export.loading.source import DUMMY, Source
from eagle_aot.export.lowering.backend import CUDA, DTYPES, check_cuda
from eagle_aot.export.method_spec import MethodSpec
from eagle_aot.export.options import ExportOptions
from eagle_aot.export.pair import Pair
from eagle_aot.export.pipeline import export_pair
from eagle_aot.export.publish.output_dir import check_output_dir
from eagle_aot.runtime_runner.program import aoti
from eagle_aot.targets.decoder.kv_cache import CacheSpec

ONLY = (TARGET_VERIFY,)

all_methods = methods.method_specs


def dummy_source(target_model: str, layers: int | None) -> Source:
    """A target of random weights, of all its layers or of the first few."""
    return Source.find(target_model, None, None, DUMMY, layers)


def export_options(max_seq_len: int, attention: str | None, progress: Progress) -> ExportOptions:
    """Of an export for this GPU."""
    return ExportOptions(
        backend=CUDA, attention=attention, max_seq_len=max_seq_len, progress=progress
    )


def build(source: Source, directory: Path, options: ExportOptions) -> None:
    """Export a dummy's `target_verify` into `directory`. Raises EagleError."""
    assert options.max_seq_len is not None
    check_cuda()
    check_output_dir(directory)
    with options.progress.stage("load"):
        loaded = load_by_gpu(source, DTYPES[CUDA], CacheSpec(options.max_seq_len, DTYPES[CUDA]))
    with narrowed():
        export_pair(loaded, directory, options=options)


def open_program(directory: Path) -> tuple[aoti.AotiExecutor, Constants]:
    """`target_verify` of a CUDA artifact and what it says of itself, its caches filled with
    standard normal numbers: zeros take less power, and a GPU's clock follows its power.

    Raises EagleError.
    """
    manifest = Manifest.read(directory)
    torch.cuda.empty_cache()  # what compiling has held is room for weights
    executor = aoti.AotiExecutor(directory, manifest, ONLY)
    for weight in executor.methods[TARGET_VERIFY].weights:
        if weight.fqn in executor.weights.caches:
            executor.weights.tensor(weight).normal_()
    return executor, Constants.from_methods(executor.constants())


@contextmanager
def narrowed() -> Iterator[None]:
    """Let the pipeline trace and lower one method of three.

    The graph contract, which is one of all three, is left to exports that are used.
    """
    with (
        patch.object(pipeline, "method_specs", verify_alone),
        patch.object(pipeline, "check_graphs", lambda *contract, **clauses: None),
    ):
        yield


def verify_alone(
    pair: Pair, lengths: MethodLengths, splits_keys: bool = False
) -> dict[str, MethodSpec]:
    """In place of all methods of an artifact."""
    return {name: all_methods(pair, lengths, splits_keys)[name] for name in ONLY}
