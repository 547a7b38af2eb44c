"""Modules without the package that they lie in."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType


@contextmanager
def without(package: str) -> Iterator[None]:
    """Within, importing a module of `package` runs that module alone, not the package's own code.

    Behind it nothing of the package is imported, and may be as a whole. One that is imported
    already, or is not there, is left as it is.
    """
    parent, _, leaf = package.rpartition(".")
    spec = None if package in sys.modules else find_spec(parent)
    if spec is None:
        yield
        return
    bare = ModuleType(package)
    bare.__path__ = [f"{place}/{leaf}" for place in spec.submodule_search_locations or ()]
    sys.modules[package] = bare
    try:
        yield
    finally:
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
            del sys.modules[name]
