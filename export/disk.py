"""The disk that an export needs, and whether it is there."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from eagle_aot.common.errors import ExportError
from eagle_aot.common.memory import in_binary
from eagle_aot.export.lowering.backend import CACHE_DIR, named_cache_dir
from eagle_aot.export.pair import Pair, weight_bytes
from eagle_aot.export.prepare.cpu_weights import INT4
from eagle_aot.export.publish.output_dir import check_disk
from eagle_aot.export.resolution import ResolvedExport
from eagle_aot.export.spec import CUDA

METHODS = 2
"""Of a target, `prefill` and `target_verify`, which read all of its weights, and of a drafter."""


@dataclass(frozen=True, slots=True)
class DiskNeeds:
    """Peaks in bytes: of the artifact's disk if the compiler's files are on it, too (`together`),
    otherwise of the `artifact`'s disk and of the `compiler`'s."""

    together: int
    artifact: int
    compiler: int = 0


def disk_needs(pair: Pair, resolved: ResolvedExport) -> DiskNeeds:
    """Return what an export of a pair writes at most at any time.

    For CUDA, ExecuTorch writes each method's weights to files next to Inductor's, before it
    deletes those that a method before it has written (`CudaWeightCollector.materialize` and
    `_add_weight`). The weights file is then a copy of what is left, so one process needs all
    weights twice. Several processes need the saved pair, and the weights of target and drafter,
    with tables that both read, for two methods of each. Kernels and code take less than a hundredth
    of that.
    """
    weights = pair.weight_bytes
    if resolved.backend != CUDA:
        # 4-bit codes take 8 bits until they are lowered.
        written = weights // (2 if resolved.spec.cpu_weights == INT4 else 1)
        return DiskNeeds(written, written)
    if resolved.spec.jobs == 1:
        return DiskNeeds(2 * weights, weights, 2 * weights)
    assert isinstance(pair.target, nn.Module) and isinstance(pair.draft, nn.Module)
    compiled = METHODS * (weight_bytes(pair.target) + weight_bytes(pair.draft))
    if pair.table_screen is not None:  # one method reads it
        compiled += weight_bytes(pair.table_screen)
    return DiskNeeds(max(weights + compiled, 2 * weights), weights, max(compiled, weights))


def check_disks(output_dir: Path, needs: DiskNeeds) -> None:
    """Raise ExportError unless the disks of the artifact and of the compiler's files have room."""
    compiler = _compiler_elsewhere(output_dir) if needs.compiler else None
    check_disk(output_dir, needs.together if compiler is None else needs.artifact)
    if compiler is not None and (free := shutil.disk_usage(compiler).free) < needs.compiler:
        raise ExportError(
            f"{compiler}: compiling takes {in_binary(needs.compiler)}, and {in_binary(free)} are "
            f"free on its disk: name another directory in {CACHE_DIR}, or unset it"
        )


def _compiler_elsewhere(output_dir: Path) -> Path | None:
    """Return the directory that the environment names for the compiler's files, or what of it
    exists; None if it names none, or one on the disk of `output_dir`."""
    named = named_cache_dir()
    if named is None:
        return None
    compiler = _existing(Path(named).absolute())
    same = compiler.stat().st_dev == _existing(output_dir.resolve()).stat().st_dev
    return None if same else compiler


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())
