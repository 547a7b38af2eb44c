"""What followed the last tokens in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest

from eagle_aot.triton_kernels.ngram_lookup import kernel
from support.kernels.ngram_cases import LENGTHS, check


def test_the_kernel_finds_what_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 32)
    check(kernel.launch, LENGTHS)
