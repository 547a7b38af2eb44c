"""Versions of what decides an artifact's contents."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "triton", "executorch", "torchao", "transformers")
NOT_INSTALLED = "not installed"


def installed_versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that make or run artifacts, without
    importing them."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED
