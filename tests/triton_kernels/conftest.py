"""What tests of kernels share."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from eagle_aot.triton_kernels.device import H100, capability


@pytest.fixture
def as_exported() -> Iterator[None]:
    """Run the kernels that an export for this GPU has: some are CUDA C++ on an H100."""
    from eagle_aot.triton_kernels.cuda_source import compiled_from_cuda

    with compiled_from_cuda() if capability() == H100 else nullcontext():
        yield
