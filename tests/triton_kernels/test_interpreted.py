"""The tests of all kernels that need no GPU, in Triton's interpreter: what they compute."""

import pytest
import torch

from support.interpreted import SUITES, run_interpreted

# Triton 3.6 does not interpret with numpy 2.4 and later, which a GPU machine may have.
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the GPU tests run the compiled kernels"
)


@pytest.fixture(scope="module")
def complaints(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """Of the suites that are selected, run in one process."""
    pytest.importorskip("triton", reason="triton is not installed")
    selected = [item for item in request.session.items if item.path == request.path]
    suites = [item.callspec.params["suite"] for item in selected if hasattr(item, "callspec")]
    return run_interpreted(suites, tmp_path_factory.mktemp("interpreted") / "report.xml")


@pytest.mark.parametrize("suite", SUITES)
def test_interpreted_they_compute_what_they_should(
    suite: str, complaints: dict[str, list[str]]
) -> None:
    found = complaints[suite]
    assert found, "it has tests"
    assert not any(found), "\n\n".join(filter(None, found))
