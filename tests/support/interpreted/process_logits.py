"""Processing logits in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.processors import Processors, Rows
from eagle_aot.triton_kernels.process_logits import cut, penalise
from eagle_aot.triton_kernels.process_logits.search import COUNT
from support.interpreted.as_a_gpu import launched_as_on_a_gpu
from support.kernels.process_cases import CASES, Case
from support.kernels.threshold_cases import askers, edges, processed

VOCAB = 130
SMALL = {"TILE": 64, "CAPACITY": 80, "FEW": 6}
"""Of few tokens there are several tiles, several steps, and more candidates than are listed."""


@pytest.fixture(autouse=True)
def as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from launched_as_on_a_gpu(monkeypatch)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_has_the_bits_of_its_twin(case: Case) -> None:
    expected = case.processed()
    assert torch.equal(interpreted(case.processed), expected)


@pytest.mark.parametrize("name", edges(VOCAB))
def test_a_threshold_is_the_twins_wherever_it_lies(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    samplings = askers(VOCAB)
    logits = edges(VOCAB)[name].repeat(len(samplings), 1)
    found = interpreted(processed, logits, samplings)
    wrong = (found != processed(logits, samplings)).any(dim=1)
    assert not wrong.any(), [s for s, is_wrong in zip(samplings, wrong, strict=True) if is_wrong]


def test_a_row_is_narrowed_to_few_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flat one, with its thresholds among many that are nearly as likely."""
    left: list[int] = []

    class Watched:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: Tensor, **constants: object) -> None:
                left.extend(arguments[6][:, COUNT.value].tolist())
                exact_kernel[grid](*arguments, **constants)

            return launch

    exact_kernel = cut.exact_kernel
    monkeypatch.setattr(cut, "exact_kernel", Watched())
    monkeypatch.setattr(cut, "FEW", 64)
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(1)).expand(2, -1)
    many = [
        SamplingParams(temperature=1.0, seed=1, top_k=1500),
        SamplingParams(temperature=1.0, seed=1, top_p=0.9),
    ]
    assert torch.equal(interpreted(processed, logits, many), processed(logits, many))
    assert len(left) == 2 and all(0 < number <= 64 for number in left)


numbers = st.floats(-20, 20, width=32) | st.sampled_from([-1e30, -100.0, 0.0, 0.5, -torch.inf])
asked = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.01, 0.7, 1.0, 100.0]),
    top_k=st.integers(0, VOCAB),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.sampled_from([0.0, 0.01]),
    seed=st.just(1),
)


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(few=st.lists(numbers, min_size=1, max_size=40), sampling=asked, seed=st.integers(0, 99))
def test_any_row_has_the_bits_of_its_twin(
    few: list[float], sampling: SamplingParams, seed: int
) -> None:
    """Of few different logits and so many equal ones, and of random ones beside them."""
    assume(max(few) > -torch.inf)
    generator = torch.Generator().manual_seed(seed)
    picked = torch.tensor(few)[torch.randint(0, len(few), (VOCAB,), generator=generator)]
    picked[seed:] = torch.randn(VOCAB - seed, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        found = interpreted(processed, picked.unsqueeze(0), [sampling])
    assert torch.equal(found, processed(picked.unsqueeze(0), [sampling]))


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Blocks, tiles and lists, for rows of few tokens to have several of each."""
    for name, size in SMALL.items():
        patch.setattr(cut, name, size)
    for module in (cut, penalise):
        patch.setattr(module, "BLOCK", 64)


def interpreted(make: Callable[..., Tensor], *arguments: object) -> Tensor:
    """What is made of logits that `Processors` take for a GPU's."""
    launched = []
    processed = Processors.processed

    def elsewhere(self: Processors, logits: Tensor, scale: Tensor, rows: Rows) -> Tensor:
        launched.append(True)
        return processed(self, Elsewhere(logits), scale, rows)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Processors, "processed", elsewhere)
        found = make(*arguments)
    assert launched
    return found


class Elsewhere:
    """Logits that say they are a GPU's."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.device = torch.device("cuda")

    def __getattr__(self, name: str) -> object:
        return getattr(self.logits, name)
