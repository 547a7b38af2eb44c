"""What the choice of tokens needs of a device."""

import pytest

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.runtime_runner.sampling import sampler
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams


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
