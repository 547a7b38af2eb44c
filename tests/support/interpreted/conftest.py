"""For all tests that run kernels in Triton's interpreter."""

from collections.abc import Iterator

import pytest

from support.interpreted.remembered_types import remember_types


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> Iterator[None]:
    """It computes the same, with less around it."""
    with pytest.MonkeyPatch.context() as patch:
        remember_types(patch)
        yield
