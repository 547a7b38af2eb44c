"""The bench of experts, on a CPU and with few of them: what it counts and prints."""

import pytest
import torch

from eagle_aot.lab.bench import experts
from eagle_aot.lab.bench.experts import Geometry, Layer, mixture, report, variants
from eagle_aot.lab.bench.timing import HostClock
from eagle_aot.targets.decoder.experts import ExpertsConfig

SMALL = Geometry(ExpertsConfig(num_experts=6, top_k=2, intermediate_size=64), 128, "silu")


def test_figures_are_of_the_experts_that_rows_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experts, "ROWS", (1, 8))
    monkeypatch.setattr(experts, "PROMPT", 9)
    monkeypatch.setattr(experts, "read_bandwidth", lambda clock, device: 1e9)
    layers = [Layer(SMALL) for _ in range(2)]
    assert layers[0].bytes == 3 * 64 * 128 * (1 / 2 + 2 / 32)
    us, bytes_, taken = mixture(HostClock(), layers, 128, 1)
    assert us > 0 and taken == 2 and bytes_ == 2 * layers[0].bytes
    assert 2 < mixture(HostClock(), layers, 128, 9)[2] <= 6
    report("small", SMALL, HostClock(), torch.device("cpu"), sweep=False)
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[-3:]]
    assert rows == ["1", "8", "9"]


def test_variants_have_the_rows_of_the_usual_tiles() -> None:
    (_, usual), *others = variants()
    assert others and all([t.rows for t in tiles] == [t.rows for t in usual] for _, tiles in others)
