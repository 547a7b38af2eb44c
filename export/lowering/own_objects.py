"""An object file of its own for each kernel of a program, whatever its code."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from unittest.mock import patch


@contextmanager
def objects_of_their_own() -> Iterator[None]:
    """Let kernels of one program have the same machine code.

    torch 2.11 names a kernel's binary after what is in it, and the object made of that after the
    binary. Of two kernels of ours that differ in a constant which no instruction depends on, the
    second's object would replace the first's and be linked twice: "multiple definition of". Small
    models for two sequences have such kernels. torch 2.13 makes one object of all binaries.
    """
    from torch._inductor import codecache  # takes seconds
    from torch._inductor.cpp_builder import convert_cubin_to_obj

    number = count()

    def convert_own(cubin_file: str, kernel_name: str, ld: str, objcopy: str) -> str:
        own = shutil.copyfile(cubin_file, f"{cubin_file}.{next(number)}")
        return convert_cubin_to_obj(own, kernel_name, ld, objcopy)

    with patch.object(codecache, "convert_cubin_to_obj", convert_own):
        yield
