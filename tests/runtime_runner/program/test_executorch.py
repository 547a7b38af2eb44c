"""The ExecuTorch runtime is refused with a torch that it cannot share tensors with, and is imported
without the compiler."""

import subprocess
import sys

import pytest
from torch.torch_version import TorchVersion

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.runtime_runner.program.executorch import check_torch


@pytest.mark.parametrize("installed", ["2.11.0+cu130", "2.12.1"])
def test_older_torch_is_refused_with_the_version_to_install(installed: str) -> None:
    with pytest.raises(UnsupportedError, match=r"needs torch 2\.13, and 2\.1") as refused:
        check_torch(TorchVersion(installed))
    assert "pip install 'torch==2.13.*'" in str(refused.value)


@pytest.mark.parametrize("installed", ["2.13.0", "2.13.1+cpu"])
def test_supported_torch_is_accepted(installed: str) -> None:
    check_torch(TorchVersion(installed))


def test_runtime_is_imported_without_the_compiler() -> None:
    program = """
import sys
from eagle_aot.runtime_runner.program.executorch import check_backend
assert "executorch.exir" not in sys.modules and "torchao" not in sys.modules
check_backend("xnnpack")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
