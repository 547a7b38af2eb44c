"""An H100 as far as Triton asks for one to analyse a kernel."""


class H100Driver:
    """What Triton asks of a driver when it analyses a kernel; no GPU need be there."""

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)
