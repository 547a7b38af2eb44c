"""All kernels in Triton's interpreter, which needs no GPU."""

import pytest
import torch

from support.interpreted import SUITES, run_interpreted

# Triton 3.6 does not interpret with numpy 2.4 and later, which a GPU machine may have.
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the GPU tests run the compiled kernels"
)


@pytest.fixture(scope="module")
def failures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """The failures of the selected suites, which run in one process."""
    pytest.importorskip("triton", reason="triton is not installed")
    selected = [item for item in request.session.items if item.path == request.path]
    suites = [item.callspec.params["suite"] for item in selected if hasattr(item, "callspec")]
    return run_interpreted(suites, tmp_path_factory.mktemp("interpreted") / "report.xml")


@pytest.mark.parametrize("suite", SUITES)
def test_interpreted_kernels_pass_their_suite(suite: str, failures: dict[str, list[str]]) -> None:
    assert failures[suite], "the suite has no tests"
    assert not any(failures[suite]), "\n\n".join(filter(None, failures[suite]))
