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

REFUSED = """
import sys, warnings

class RefuseOnce:
    def find_spec(self, name, path=None, target=None):
        if name == "executorch.extension.pybindings.portable_lib" and self in sys.meta_path:
            sys.meta_path.remove(self)
            raise ImportError("cannot import name 'to_edge' from 'executorch.exir'")

sys.meta_path.insert(0, RefuseOnce())
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from eagle_aot.runtime_runner.program.runtime import COMPILER, Runtime
assert Runtime.get() and len(sys.modules[COMPILER].__all__) > 3
assert "importing ExecuTorch's compiler, too: cannot import name" in " ".join(
    str(warning.message) for warning in caught
)
"""


def test_runtime_is_imported_without_the_compiler_which_can_still_be_imported() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_runtime_is_imported_with_the_compiler_where_it_needs_more_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
