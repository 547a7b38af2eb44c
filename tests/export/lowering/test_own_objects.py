"""Two kernels of the same machine code, in one program."""

import subprocess
from pathlib import Path

from torch._inductor import codecache

from eagle_aot.export.lowering.own_objects import objects_of_their_own

NAMES = ["draft_0", "draft_1"]


def linked(directory: Path) -> subprocess.CompletedProcess[str]:
    """Both kernels' objects in one library, as AOTInductor makes and links them."""
    binary = directory / "same.cubin"
    binary.write_bytes(b"code of both")
    of_both = [codecache.convert_cubin_to_obj(str(binary), n, "ld", "objcopy") for n in NAMES]
    command = ["g++", "-shared", "-o", directory / "linked.so", *of_both]
    return subprocess.run(command, capture_output=True, text=True)


def test_kernels_of_the_same_code_are_linked(tmp_path: Path) -> None:
    with objects_of_their_own():
        assert linked(tmp_path).returncode == 0
    symbols = subprocess.run(["nm", tmp_path / "linked.so"], capture_output=True, text=True).stdout
    for name in NAMES:
        assert f"__{name}_start" in symbols


def test_without_it_one_is_missing(tmp_path: Path) -> None:
    """If PyTorch comes to do this itself, there is nothing left for us to do."""
    assert "multiple definition" in linked(tmp_path).stderr
