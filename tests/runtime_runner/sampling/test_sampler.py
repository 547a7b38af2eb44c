"""What sampling needs of a device, and its noise keys against Random123's test vectors."""

import pytest
import torch

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.runtime_runner.sampling import sampler
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import noise_keys, philox


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
