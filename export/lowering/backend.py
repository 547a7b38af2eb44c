"""Which backend an export lowers through, and whether this machine can."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.export import ExportedProgram

from eagle_aot.artifact import Device
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export.lowering.patches import Patch, Replacement
from eagle_aot.export.spec import AUTO, CUDA, XNNPACK, Backend
from eagle_aot.triton_kernels.device import H100, SHARED_MEMORY, capability

DTYPES = {CUDA: torch.bfloat16, XNNPACK: torch.float32}
"""The dtype that a backend's programs compute in."""

CACHE_DIR = "TORCHINDUCTOR_CACHE_DIR"
"""The environment's name for the directory of the compiler's files."""

ASSEMBLE = "assemble"
"""The name of the stage that makes one program of compiled methods."""

INSTEAD = ": install it, or use --backend xnnpack"


class Lowering(Protocol):
    """The interface of a backend's module."""

    PATCHES: tuple[Patch, ...]
    """The patches that it applies while it lowers."""

    def workspace(self, directory: Path) -> AbstractContextManager[None]:
        """Surround `lower` and `write`; `directory` may be made, and is deleted afterwards."""

    def lower(
        self,
        programs: dict[str, ExportedProgram],
        constants: Mapping[str, Any],
        begin: Callable[[str], None],
        take_compiled: Replacement | None = None,
    ) -> Any:
        """Lower all methods into one program that shares weights and caches between them.

        `begin` is called with the name of each stage after the first. `take_compiled` replaces what
        compiles a method, for a backend whose methods may be compiled in parallel.
        """

    def write(self, program: Any, directory: Path) -> None:
        """Write the program's files."""

    def device_record(self) -> Device | None:
        """Return what the program was compiled for, None for any machine."""


def named_cache_dir() -> str | None:
    """Return the directory that the environment names for the compiler's files, if any.

    The compiler, when it is imported, names its default there. That counts as none: all exports of
    a user would share it.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    named = os.environ.get(CACHE_DIR)
    return None if named == default_cache_dir() else named or None


def lowering(backend: str) -> Lowering:
    """Import the module of a backend, which takes seconds."""
    if backend == CUDA:
        from eagle_aot.export.lowering import cuda

        return cuda
    from eagle_aot.export.lowering import xnnpack

    return xnnpack


def choose_backend(requested: Backend) -> Backend:
    """Return `requested`, or for "auto" CUDA where there is a GPU, else XNNPACK.

    Raises UnsupportedError when the requested backend cannot compile on this machine.
    """
    available: Backend = "cuda" if torch.cuda.is_available() else "xnnpack"
    chosen = available if requested == AUTO else requested
    if chosen == CUDA:
        check_cuda()
    return chosen


def untested_gpu_warning(backend: str) -> str:
    """Return a line to print where the kernels have not been run on GPUs like this one, else ""."""
    if backend != CUDA or capability() == H100:
        return ""
    return (
        f"compute capability {format_capability(capability())}: the kernels compile for it, "
        f"but have been run only on {format_capability(H100)}: "
        "check the artifact with eagle-check --rows"
    )


def format_capability(compute_capability: tuple[int, int]) -> str:
    """Return a compute capability as people write it: (9, 0) as "9.0"."""
    major, minor = compute_capability
    return f"{major}.{minor}"


def check_cuda() -> None:
    """Raise UnsupportedError unless this machine has a GPU and the compilers of AOTInductor."""
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "--backend cuda: kernels are compiled and tuned on the GPU they will run on, and this "
            "machine shows none (--check-only needs no GPU, --backend xnnpack runs anywhere)"
        )
    if capability() not in SHARED_MEMORY:
        supported = ", ".join(map(format_capability, SHARED_MEMORY))
        raise UnsupportedError(
            "--backend cuda: the kernels are made for GPUs of compute capability "
            f"{supported}, not for {format_capability(capability())}: use --backend xnnpack"
        )
    from torch.utils.cpp_extension import CUDA_HOME

    if importlib.util.find_spec("triton") is None:
        raise UnsupportedError(f"--backend cuda: triton is not installed{INSTEAD}")
    if CUDA_HOME is None:
        raise UnsupportedError(f"--backend cuda: no CUDA toolkit (set CUDA_HOME){INSTEAD}")
    if shutil.which("g++") is None:
        raise UnsupportedError(f"--backend cuda: no C++ compiler (g++){INSTEAD}")
