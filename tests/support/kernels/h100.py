"""An H100 as far as Triton asks for one to analyse a kernel; no GPU need be there."""

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
