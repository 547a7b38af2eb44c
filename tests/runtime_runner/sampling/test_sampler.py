"""Greedy tokens, devices that cannot sample, and noise keys against Random123's vectors."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.runtime_runner.sampling import sampler
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import greedy, noise_keys, philox


def test_sampling_where_no_kernel_can_be_launched_is_refused_and_greedy_decoding_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampler, "launches_kernels", lambda: False)
    on_a_gpu = sampler.Sampler(1, "meta")
    on_a_gpu.begin(0, GREEDY)
    with (
        pytest.raises(UnsupportedError, match=r"install a C compiler \(gcc\)"),
        on_a_gpu.reserve(SamplingParams(temperature=1.0, seed=1)),
    ):
        raise AssertionError("nothing may run")
    assert on_a_gpu.active == {0}


ANSWERS = [
    (0, [0] * 4, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (2**64 - 1, [2**32 - 1] * 4, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        0x299F31D0A4093822,
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def test_philox_gives_the_known_answers() -> None:
    for seed, counter, expected in ANSWERS:
        assert philox(torch.tensor([counter]), seed)[0].tolist() == expected


def test_a_key_depends_on_seed_and_position_alone() -> None:
    keys = noise_keys(7, 0, 300)
    assert torch.equal(noise_keys(7, 120, 140), keys[120:140])
    assert len({tuple(key) for key in keys.tolist()}) == 300
    assert not torch.equal(noise_keys(8, 0, 300), keys)


SETTINGS = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@SETTINGS
@given(
    rows=st.integers(1, 8),
    vocab=st.sampled_from([1, 2, 97, 256, 1000, 1187 * 4, 4096]),
    values=st.integers(1, 50),
    seed=st.integers(0, 9),
)
def test_the_first_of_the_largest_is_chosen(rows: int, vocab: int, values: int, seed: int) -> None:
    """Few different values: most rows hold their largest many times."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, values, (1, rows, vocab), generator=generator).float()
    expected = [row.index(max(row)) for row in logits[0].tolist()]
    assert greedy(logits).tolist() == [expected]


def test_the_only_finite_value_wins() -> None:
    logits = torch.full((1, 1, 1000), -torch.inf)
    logits[0, 0, 777] = -1e30
    assert greedy(logits).tolist() == [[777]]


def test_a_cpu_searches_with_one_thread_and_leaves_torch_its_own() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        logits = torch.zeros(1, 2, 1 << 16)
        with ThreadCounter() as counter:
            greedy(logits)
        assert counter.counts == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class ThreadCounter(TorchDispatchMode):
    """Records how many threads torch had at each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts.add(torch.get_num_threads())
        return func(*args, **(kwargs or {}))
