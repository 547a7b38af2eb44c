"""Text is right whatever the head reads; acceptance alone shows that it reads the right layers.

The boundaries themselves are checked against golden hidden states in `tests/targets`.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from eagle_aot.export import Pair, load_draft
from eagle_aot.export.methods import PrefillMethod
from eagle_aot.export.prepare.int4 import dequantize_int4
from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.targets import TARGETS, load_target
from support.runner.eager_executor import eager_runner

FLOOR = 7.35  # tokens per round at K = 7, of at most 8


def tau(tap_layers: Sequence[int] | None, directory: Path) -> float:
    """Return the tokens per round of the shipped pair on 24 held-out problems, eagerly."""
    spec = TARGETS["gemma4-tiny"]
    assert spec.draft_dir is not None
    target = load_target("gemma4-tiny", 256)
    pair = Pair(target, load_draft(spec.draft_dir, target, 256))
    pair = dequantize_int4(pair)  # once instead of in every round
    if tap_layers is not None:
        pair.target.set_eagle_tap_layers(tap_layers)
    runner = eager_runner(pair, directory)
    generator = stories(3, "test")
    results = [runner.generate(next(generator).question, 128) for _ in range(24)]
    return sum(r.stats.emitted for r in results) / sum(r.stats.rounds for r in results)


def test_the_head_reads_the_layers_it_was_trained_on(tmp_path: Path) -> None:
    assert tau(None, tmp_path) > FLOOR


@pytest.mark.parametrize("shifted", [(1, 3, 4), pytest.param((3, 5, 6), marks=pytest.mark.slow)])
def test_taps_shifted_by_one_lower_acceptance(shifted: tuple[int, ...], tmp_path: Path) -> None:
    assert tau(shifted, tmp_path) < FLOOR


def test_features_are_those_of_the_boundaries_that_transformers_sees() -> None:
    spec = TARGETS["gemma4-tiny"]
    assert spec.target_dir is not None and spec.draft_dir is not None
    target = load_target("gemma4-tiny", 64)
    pair = Pair(target, load_draft(spec.draft_dir, target, 64))
    tokens = torch.randint(5, 1024, (1, 40), generator=torch.Generator().manual_seed(0))
    oracle = AutoModelForCausalLM.from_pretrained(spec.target_dir, dtype=torch.float32)
    with torch.no_grad():
        first = torch.zeros(1, dtype=torch.int64)
        _, features = PrefillMethod(pair)(tokens, torch.arange(40), first)
        boundaries = oracle(tokens, output_hidden_states=True).hidden_states

        def error(taps: Sequence[int]) -> float:
            expected = pair.draft.fuse(torch.cat([boundaries[b] for b in taps], dim=-1))
            return float((features - expected).norm() / expected.norm())

        assert error((2, 4, 5)) < 1e-4
        for one_shifted in ((1, 4, 5), (3, 4, 5), (2, 3, 5), (2, 5, 5), (2, 4, 4)):
            assert error(one_shifted) > 0.02, one_shifted
