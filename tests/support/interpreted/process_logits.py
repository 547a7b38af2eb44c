"""Processing logits in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.processors import Processors, Rows
from eagle_aot.triton_kernels.process_logits import cut, penalise
from eagle_aot.triton_kernels.process_logits.exact import exact_kernel
from eagle_aot.triton_kernels.process_logits.search import COUNT
from support.kernels.process_cases import CASES, Case
from support.kernels.threshold_cases import edges, hard_samplings, processed

VOCAB = 130
SMALL = {"TILE": 64, "CAPACITY": 80, "FEW": 6}
"""Sizes with which few tokens need several tiles, several steps and more than all candidates."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernels_have_the_bits_of_the_cpu_processors(case: Case) -> None:
    expected = case.processed()
    assert torch.equal(interpreted(case.processed), expected)


@pytest.mark.parametrize("name", edges(VOCAB))
def test_thresholds_of_edge_cases_equal_those_of_the_cpu_processors(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)
    samplings = hard_samplings(VOCAB)
    logits = edges(VOCAB)[name].repeat(len(samplings), 1)
    found = interpreted(processed, logits, samplings)
    wrong = (found != processed(logits, samplings)).any(dim=1)
    assert not wrong.any(), [s for s, is_wrong in zip(samplings, wrong, strict=True) if is_wrong]


def test_narrowing_leaves_few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is flat, with many logits close to its thresholds."""
    candidates: list[int] = []

    class RecordingKernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: Tensor, **constants: object) -> None:
                candidates.extend(arguments[6][:, COUNT.value].tolist())
                exact_kernel[grid](*arguments, **constants)

            return launch

    monkeypatch.setattr(cut, "exact_kernel", RecordingKernel())
    monkeypatch.setattr(cut, "FEW", 64)
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(1)).expand(2, -1)
    samplings = [
        SamplingParams(temperature=1.0, seed=1, top_k=1500),
        SamplingParams(temperature=1.0, seed=1, top_p=0.9),
    ]
    assert torch.equal(interpreted(processed, logits, samplings), processed(logits, samplings))
    assert len(candidates) == 2 and all(0 < count <= 64 for count in candidates)


numbers = st.floats(-20, 20, width=32) | st.sampled_from([-1e30, -100.0, 0.0, 0.5, -torch.inf])
drawn = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.01, 0.7, 1.0, 100.0]),
    top_k=st.integers(0, VOCAB),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.sampled_from([0.0, 0.01]),
    seed=st.just(1),
)


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(few=st.lists(numbers, min_size=1, max_size=40), sampling=drawn, seed=st.integers(0, 99))
def test_random_rows_have_the_bits_of_the_cpu_processors(
    few: list[float], sampling: SamplingParams, seed: int
) -> None:
    """Rows have many equal logits and some random ones."""
    assume(max(few) > -torch.inf)
    generator = torch.Generator().manual_seed(seed)
    picked = torch.tensor(few)[torch.randint(0, len(few), (VOCAB,), generator=generator)]
    picked[seed:] = torch.randn(VOCAB - seed, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        row = interpreted(processed, picked.unsqueeze(0), [sampling])
    assert torch.equal(row, processed(picked.unsqueeze(0), [sampling]))


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Make blocks, tiles and lists so small that rows of few tokens have several of each."""
    for name, size in SMALL.items():
        patch.setattr(cut, name, size)
    for module in (cut, penalise):
        patch.setattr(module, "BLOCK", 64)


def interpreted(make: Callable[..., Tensor], *arguments: object) -> Tensor:
    """Call `make` while `Processors` take its logits [R, V] for those of a GPU."""
    launched: list[bool] = []
    processed = Processors.processed

    def on_gpu(self: Processors, logits: Tensor, scale: Tensor, rows: Rows) -> Tensor:
        launched.append(True)
        return processed(self, GpuLogits(logits), scale, rows)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Processors, "processed", on_gpu)
        result = make(*arguments)
    assert launched
    return result


class GpuLogits:
    """Logits that report a GPU as their device."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.device = torch.device("cuda")

    def __getattr__(self, name: str) -> object:
        return getattr(self.logits, name)
