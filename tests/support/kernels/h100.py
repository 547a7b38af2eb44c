"""Analysing and compiling kernels for an H100 on machines without one."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


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
