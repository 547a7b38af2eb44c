"""Processing logits in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch

from eagle_aot.runtime_runner.sampling import processors
from support.kernels.process_cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_has_the_bits_of_its_twin(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = case.processed()
    launched = []

    def on_a_gpu(
        self: processors.Processors, logits: torch.Tensor, *others: object
    ) -> torch.Tensor:
        launched.append(True)
        return processed(self, Elsewhere(logits), *others)  # type: ignore[arg-type]

    processed = processors.Processors.processed
    monkeypatch.setattr(processors.Processors, "processed", on_a_gpu)
    assert torch.equal(case.processed(), expected) and launched


class Elsewhere:
    """Logits that say they are a GPU's."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits
        self.device = torch.device("cuda")

    def __getattr__(self, name: str) -> object:
        return getattr(self.logits, name)
