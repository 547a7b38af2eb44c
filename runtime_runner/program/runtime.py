"""The official runtime's Python module, imported without ExecuTorch's compiler.

`executorch.runtime` wants one warning's class of `executorch.exir`, and so imports all of that:
five seconds, and 200 MB, of every process that runs an artifact.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

COMPILER = "executorch.exir"


@contextmanager
def compiler_left_out() -> Iterator[None]:
    """While it lasts, the package is an empty one, whose modules are imported one by one. Behind it
    nothing of this is left: whoever imports the package gets all of it."""
    spec = importlib.util.find_spec(COMPILER) if COMPILER not in sys.modules else None
    if spec is None:
        yield
        return
    bare = ModuleType(COMPILER)
    bare.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[COMPILER] = bare
    try:
        yield
    finally:
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{COMPILER}.")]:
            del sys.modules[name]


with compiler_left_out():
    from executorch.runtime import Method, Runtime, Verification

__all__ = ["Method", "Runtime", "Verification"]
