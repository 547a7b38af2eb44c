"""Importing the ExecuTorch runtime does not import its compiler."""

import subprocess
import sys

CHILD = """
import sys
from eagle_aot.runtime_runner.program.runtime import COMPILER, Runtime
assert COMPILER not in sys.modules and "torchao" not in sys.modules
assert Runtime.get().backend_registry.is_available("XnnpackBackend")
from executorch.exir import to_edge
import executorch.exir._warnings as warnings
assert callable(to_edge) and sys.modules[COMPILER]._warnings is warnings
"""


def test_runtime_is_imported_without_the_compiler_which_can_still_be_imported() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
