"""CUDA C++ in place of Triton kernels, for programs that AOTInductor compiles.

AOTInductor takes Triton kernels alone into a program. So a Triton kernel stands for one of CUDA
C++: it has the same name and arguments, says what is written, and names the source by `described`.
Within `compiled_from_cuda`, Triton's last stages compile that source instead. Importing this module
needs no triton.
"""

import hashlib
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

FOLDER = Path(__file__).parent
MARK = "compiled from cuda:"

Macros = dict[str, int | float]
"""What a source is compiled with."""


def as_text(macros: Macros) -> str:
    """Return macros as a text."""
    return " ".join(f"{name}={value!r}" for name, value in macros.items())


def described(source: Path, macros: str, threads: int, shared: int) -> str:
    """Return the text that stands in a kernel's code for a `source` below `FOLDER`, compiled with
    `macros` and launched with so many threads and bytes of shared memory.

    In small letters: where torch analyses a kernel, a D of a constant is an attribute of a pointer.
    """
    name = source.relative_to(FOLDER).as_posix()
    return f"{MARK} {name} {digest()} {macros} shared={shared} launched={threads}".lower()


@cache
def digest() -> str:
    """Return a digest of all sources: in Triton's cache, each version has entries of its own."""
    sources = *sorted(FOLDER.rglob("*.cu*")), Path(__file__)
    return hashlib.sha256(b"".join(map(Path.read_bytes, sources))).hexdigest()[:16]


@contextmanager
def compiled_from_cuda() -> Iterator[None]:
    """Let Triton compile CUDA C++ for kernels that stand for it, in this process alone."""
    import triton

    before = triton.knobs.runtime.add_stages_inspection_hook
    triton.knobs.runtime.add_stages_inspection_hook = replace_stage
    try:
        yield
    finally:
        triton.knobs.runtime.add_stages_inspection_hook = before


def is_compiling() -> bool:
    """Whether this is within `compiled_from_cuda`."""
    import triton

    return triton.knobs.runtime.add_stages_inspection_hook is replace_stage


def replace_stage(*arguments: Any) -> tuple[str, str] | None:
    """Replace the stages that make and assemble PTX: for a kernel that stands for CUDA C++, both
    compile its source.

    A program gets the PTX, compiled again; the export itself launches what is assembled here.
    Triton calls this with itself and its stages, and from 3.7 on without arguments for what its
    cache is to tell apart.
    """
    if not arguments:
        return digest(), digest()
    stages: dict[str, Callable[..., Any]] = arguments[1]
    make_ptx, assemble = stages["ptx"], stages["cubin"]

    def make_or_compile(module: object, metadata: dict[str, Any]) -> str:
        ptx = str(make_ptx(module, metadata))
        if (found := re.search(rf"{MARK} (\S+) \w+ (.*)", ptx)) is None:
            return ptx
        macros = found[2].upper().split()
        sizes = dict(macro.split("=") for macro in macros)
        metadata["num_warps"] = int(sizes["LAUNCHED"]) // 32
        metadata["shared"] = int(sizes["SHARED"])
        code = nvcc("-ptx", FOLDER / found[1], [f"-D{macro}" for macro in macros], metadata)
        return f"// {found[0]}\n{code.decode()}"

    def assemble_or_compile(ptx: str, metadata: dict[str, Any]) -> bytes:
        if MARK not in ptx:
            return bytes(assemble(ptx, metadata))
        with TemporaryDirectory() as directory:
            source = Path(directory) / "kernel.ptx"
            source.write_text(ptx)
            return nvcc("-cubin", source, [], metadata)

    stages["ptx"], stages["cubin"] = make_or_compile, assemble_or_compile
    return None


def nvcc(kind: str, source: Path, macros: list[str], metadata: Mapping[str, Any]) -> bytes:
    """Compile a source to `kind` for the target that Triton compiles for. Raises RuntimeError."""
    from torch.utils.cpp_extension import CUDA_HOME

    compiler = Path(str(CUDA_HOME)) / "bin" / "nvcc"
    with TemporaryDirectory() as directory:
        result = Path(directory) / "result"
        target = f"-arch=sm_{metadata['target'].arch}a"
        # Nothing here is for the host, so any host compiler will do.
        flags = kind, target, "-allow-unsupported-compiler", "-O3", "-std=c++17", *macros
        command = [str(compiler), *flags, "-o", str(result), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise RuntimeError(f"{compiler}: not found: set CUDA_HOME to a CUDA toolkit") from error
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{compiler}: {source.name}: {error.stderr.strip()}") from error
        return result.read_bytes()
