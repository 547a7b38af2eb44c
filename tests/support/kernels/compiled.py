"""Analysing kernels, and compiling them as a launch does, for GPUs on machines without one."""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from ctypes import CDLL
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels import device
from eagle_aot.triton_kernels.cuda_source import compiled_from_cuda
from eagle_aot.triton_kernels.kv_int8 import entry_length


class H100Driver:
    """The part of a driver that Triton needs to compile."""

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def analyse_for_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton take this machine for one with an H100; skip if triton is not installed."""
    triton = pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(triton.runtime.driver, "_active", H100Driver())


def ptx_for_h100(
    kernel: Any, kinds: Mapping[str, str], constants: Mapping[str, Any], options: dict[str, Any]
) -> str:
    """Compile a kernel to PTX; arguments have the types `kinds`, all others are constants.

    Skips if triton is not installed.
    """
    triton = pytest.importorskip("triton", reason="triton is not installed")
    names = kernel.arg_names
    source = triton.compiler.ASTSource(
        fn=kernel,
        signature={name: kinds.get(name, "constexpr") for name in names},
        constexprs={name: constants[name] for name in names if name in constants},
    )
    target = H100Driver().get_current_target()
    return str(triton.compile(source, target=target, options=options).asm["ptx"])


def local_memory(cubin: bytes, directory: Path) -> int:
    """Return the bytes per thread of local memory, to which registers are spilled."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    binary = directory / "kernel.cubin"
    binary.write_bytes(cubin)
    command = [str(tool), "--dump-resource-usage", str(binary)]
    usage = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return sum(int(size) for size in re.findall(r"(?:STACK|LOCAL):(\d+)", usage))


def compiled_by_nvcc(call: "Launch", monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compile a kernel that stands for CUDA C++, as an export for an H100 does."""
    home = str(Path(str(shutil.which("nvcc"))).parents[1])
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", home)
    with compiled_from_cuda():
        return call.compiled(device.H100)


def compiled_for_cpu(harness: str, source: Path, macros: str, directory: Path) -> CDLL:
    """Compile `harness`, a file of this folder that runs threads of a CUDA `source` as fibers."""
    library = directory / "kernel.so"
    flags = "-x", "c++", "-std=c++17", "-shared", "-Xcompiler", "-fPIC,-w,-O2,-ffp-contract=off"
    defined = [f"-D{macro}" for macro in (*macros.split(), f'KERNEL="{source}"')]
    files = "-o", str(library), str(Path(__file__).with_name(harness))
    subprocess.run(["nvcc", "-allow-unsupported-compiler", *flags, *defined, *files], check=True)
    return CDLL(str(library))


def declared_names(source: Path, kernel: Any) -> list[str]:
    """Return the names that a Triton kernel's arguments have for those of the CUDA C++ it stands
    for."""
    declared = re.search(rf"{kernel.__name__}\(([^)]*)\) {{", source.read_text())
    assert declared is not None
    pairs = (re.fullmatch(r"\s*(.*[ *])(\w+)\s*", each) for each in declared[1].split(","))
    found = [(pair[1], pair[2]) for pair in pairs if pair is not None]
    return [name + "_ptr" * ("*" in kind) for kind, name in found] + ["CUDA"]


OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")
KINDS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.bool: "*i1",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


@dataclass(frozen=True)
class Launch:
    """A call of a kernel: its arguments by name and the compiler's options."""

    kernel: Any
    arguments: dict[str, Any]
    constants: dict[str, Any]
    options: dict[str, Any]

    def compiled(self, capability: tuple[int, int], **sizes: str) -> Any:
        """Compile the kernel for a GPU of that compute capability.

        `sizes` are types of arguments, in place of int32; one of type "constexpr" is 1.
        """
        import triton

        names = self.kernel.arg_names
        kinds = {name: _kind(value) for name, value in self.arguments.items()} | sizes
        ones = {name: 1 for name, kind in sizes.items() if kind == "constexpr"}
        source = triton.compiler.ASTSource(
            fn=self.kernel,
            signature={name: kinds.get(name, "constexpr") for name in names},
            constexprs=self.constants | ones,
            attrs={
                (index,): [["tt.divisibility", 16]]
                for index, name in enumerate(names)
                if kinds.get(name, "").startswith("*")
            },
        )
        major, minor = capability
        target = triton.backends.compiler.GPUTarget("cuda", 10 * major + minor, 32)
        return triton.compile(source, target=target, options=self.options)


class Unlaunched:
    """Takes the place of a kernel that another module launches."""

    def __init__(self, kernel: object) -> None: ...

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **constants: None


def launches(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    launch: Callable[[], object],
    capability: tuple[int, int],
) -> list[Launch]:
    """Return the kernel calls that `launch`, of `module`, makes on a GPU of that capability."""
    calls: list[Launch] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return self.call

        def call(self, *arguments: Any, **constants: Any) -> None:
            options = {name: constants.pop(name) for name in OPTIONS if name in constants}
            named = dict(zip(self.kernel.arg_names, arguments, strict=False))
            calls.append(Launch(self.kernel, named, constants, options))

    monkeypatch.setattr(device, "capability", lambda: capability)
    if hasattr(module, "capability"):
        monkeypatch.setattr(module, "capability", lambda: capability)
    if hasattr(module, "wrap_triton"):
        monkeypatch.setattr(module, "wrap_triton", Recorder)
    else:
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            monkeypatch.setattr(module, name, Recorder(getattr(module, name)))
    launch()
    return calls


def _kind(value: object) -> str:
    return KINDS[value.dtype] if isinstance(value, Tensor) else "i32"


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return a tensor of this shape that has no data."""
    return torch.empty(shape, dtype=dtype, device="meta")


def int4_weight(group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, scales and zero points of a weight [43008, 5376]."""
    blocks = 2 if group == 128 else 1
    scales = empty(336, 42 // blocks, 128 * blocks * 128 // group)
    return empty(336, 42, 4096, dtype=torch.int16), scales, scales


def experts_weight(tiles: int, blocks: int, group: int) -> tuple[Tensor, Tensor]:
    """Return codes and scales of 128 experts with so many tiles and blocks of columns."""
    step = 2 if group == 128 else 1
    scales = empty(128, tiles, blocks // step, 128 * step * 128 // group)
    return empty(128, tiles, blocks, 4096, dtype=torch.int16), scales


def rows_attention(
    kernel: ModuleType, heads: int = 9, kv_heads: int = 3, dim: int = 64, window: int = 0,
    entries: torch.dtype = torch.bfloat16,
) -> None:  # fmt: skip
    """Launch the attention of eight rows, by default for SmolLM2's heads."""
    caches = entries_of(kv_heads, dim, entries)
    rows = (empty(1, 8, dtype=torch.int64), empty(1, dtype=torch.int64))
    tail = empty(1, 8, 16, dtype=torch.int64)
    kernel.launch(empty(1, 8, heads, dim), caches, caches, *rows, tail, 1.0, window, 2 * window)


def entries_of(kv_heads: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Return a sequence's cache [kv_heads, 1, 4096, ...] of `dtype`, which may be INT8, in memory
    as on a GPU."""
    return empty(1, 4096, kv_heads, entry_length(dim, dtype), dtype=dtype).permute(2, 0, 1, 3)


def prompt_attention(
    kernel: ModuleType, heads: int = 32, kv_heads: int = 4, dim: int = 512, window: int = 0,
    images: bool = False, entries: torch.dtype = torch.bfloat16,
) -> None:  # fmt: skip
    """Launch the attention of a prompt, by default for the full layers of Gemma 4 31B."""
    caches, positions = entries_of(kv_heads, dim, entries), empty(512, dtype=torch.int64)
    layer = 1.0, window, 2 * window
    sequence, last = empty(1, dtype=torch.int64), positions if images else None
    kernel.launch(
        empty(1, 512, heads, dim), caches, caches, positions, sequence, *layer, None, last
    )
