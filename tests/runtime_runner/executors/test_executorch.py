"""What the ExecuTorch runtime asks of the rest of a machine."""

import pytest
from torch.torch_version import TorchVersion

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.runtime_runner.executors.executorch import check_torch


@pytest.mark.parametrize("installed", ["2.11.0+cu130", "2.12.1"])
def test_a_torch_that_it_was_not_built_for_is_named(installed: str) -> None:
    with pytest.raises(UnsupportedError, match=r"needs torch 2\.13, and 2\.1") as refused:
        check_torch(TorchVersion(installed))
    assert "pip install 'torch==2.13.*'" in str(refused.value)


@pytest.mark.parametrize("installed", ["2.13.0", "2.13.1+cpu"])
def test_its_own_is_taken(installed: str) -> None:
    check_torch(TorchVersion(installed))
