"""The ExecuTorch runtime's Python module, imported without ExecuTorch's compiler.

`executorch.runtime` needs one warning's class of `executorch.exir`, and so imports the whole
compiler, in every process that runs an artifact: 2.9 CPU seconds and 206 of 427 MB with executorch
1.5.1 and torch 2.13. Upstream issue: none known. The runner does not import the table of patches
that an export applies, `export/lowering/patches.py`.
"""

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

COMPILER = "executorch.exir"


@contextmanager
def compiler_left_out() -> Iterator[None]:
    """Let imports find an empty package in the compiler's place, whose modules load one by one.

    Later imports of the package load all of it.
    """
    spec = importlib.util.find_spec(COMPILER) if COMPILER not in sys.modules else None
    if spec is None:
        yield
        return
    empty_package = ModuleType(COMPILER)
    empty_package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[COMPILER] = empty_package
    try:
        yield
    finally:
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{COMPILER}.")]:
            del sys.modules[name]


try:
    with compiler_left_out():
        from executorch.runtime import Method, Runtime, Verification
except (ImportError, AttributeError) as error:  # a version that needs more of its compiler
    warnings.warn(f"importing ExecuTorch's compiler, too: {error}", stacklevel=1)
    from executorch.runtime import Method, Runtime, Verification

__all__ = ["Method", "Runtime", "Verification"]
