"""Kernels as a launch compiles them for a GPU, on machines without one."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels import device

OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")
KINDS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
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

    def compiled(self, capability: tuple[int, int]) -> Any:
        """Compile the kernel for a GPU of that compute capability."""
        import triton

        names = self.kernel.arg_names
        kinds = {name: _kind(value) for name, value in self.arguments.items()}
        source = triton.compiler.ASTSource(
            fn=self.kernel,
            signature={name: kinds.get(name, "constexpr") for name in names},
            constexprs=self.constants,
            attrs={
                (index,): [["tt.divisibility", 16]]
                for index, name in enumerate(names)
                if kinds.get(name, "").startswith("*")
            },
        )
        major, minor = capability
        target = triton.backends.compiler.GPUTarget("cuda", 10 * major + minor, 32)
        return triton.compile(source, target=target, options=self.options)


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
