"""An H100 as far as Triton asks for one to analyse or compile a kernel; no GPU need be there."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


class H100Driver:
    """What Triton asks of a driver."""

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def analyse_for_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton take this machine for one with an H100; skips where triton is not installed."""
    triton = pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(triton.runtime.driver, "_active", H100Driver())


def ptx_for_h100(
    kernel: Any, kinds: Mapping[str, str], constants: Mapping[str, Any], options: dict[str, Any]
) -> str:
    """What a kernel is compiled to whose arguments have these kinds; all others are constants.

    Skips where triton is not installed.
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
    """Bytes per thread of what registers are spilled to."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    binary = directory / "kernel.cubin"
    binary.write_bytes(cubin)
    command = [tool, "--dump-resource-usage", binary]
    usage = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return sum(int(size) for size in re.findall(r"(?:STACK|LOCAL):(\d+)", usage))
