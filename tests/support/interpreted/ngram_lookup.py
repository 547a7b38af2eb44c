"""What followed the last tokens in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

from functools import partial

import pytest

from eagle_aot.runtime_runner.drafters.ngram import LONGEST
from eagle_aot.triton_kernels import ngram_lookup
from support.kernels.ngram_cases import LENGTHS, check


def test_the_kernels_find_what_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_lookup, "BLOCK", 32)
    check(partial(ngram_lookup.launch, longest=LONGEST), LENGTHS)
