"""Real `.pte` files whose linears XNNPACK computes with INT8 and INT4 weights.

Those of INT4 are of several sequences. That texts do not depend on drafts with INT8 is in
`test_lossless.py`, whose qwen3 pair is INT8.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_aot.artifact import TARGET_VERIFY
from eagle_aot.artifact.manifest import Manifest
from eagle_aot.export import Pair
from eagle_aot.export.drafters.registry import kind_of_checkpoint
from eagle_aot.export.prepare.cpu_weights import dequantize_for_eager, quantize_for_cpu
from eagle_aot.lab.checks.integrity import check_integrity, report
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import no_moves
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.runner.eager_executor import EagerExecutor

KINDS = {
    "qwen3_runner": ("int8", "qwen3_pair"),
    "batch_runner": ("int4", "random_pair"),
    "experts_int8_runner": ("int8", "experts_pair"),
    "experts_int4_runner": ("int4", "experts_pair"),
}
"""The weights and the pair of each runner."""
DENSE = "qwen3_runner", "batch_runner"
EXPERTS = (pytest.param(name, marks=pytest.mark.slow) for name in KINDS if name not in DENSE)


@pytest.mark.parametrize("fixture", [*DENSE, *EXPERTS])
def test_the_program_computes_what_eager_code_computes(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    """With the same codes, until two orders of sums round one input to either side of a half.

    From there on a row differs as much as rounding changes it.
    """
    runner: Runner = request.getfixturevalue(fixture)
    kind, pair_of_files = KINDS[fixture]
    target_dir, head_dir = request.getfixturevalue(pair_of_files)
    target = load_target(target_dir, runner.constants.max_seq_len)
    files, caches = Checkpoint(head_dir), CacheSpec(192, torch.float32)
    draft, _ = kind_of_checkpoint(files).load(files, target, torch.float32, caches, None)
    light = quantize_for_cpu(Pair(target, draft), kind)
    tokens = torch.arange(40, 80).unsqueeze(0)
    first, tail = torch.zeros(1, dtype=torch.int64), runner.constants.tail
    step = chain_rows(tokens, first, first, tail).inputs
    found = runner.executor.run(TARGET_VERIFY, *step, no_moves(1, tail, "cpu"))
    for pair in (light, dequantize_for_eager(light)):
        expected = EagerExecutor(pair).run(TARGET_VERIFY, *step, no_moves(1, tail, "cpu"))
        for one, other in zip(expected, found, strict=True):
            off = (one - other).norm(dim=-1) / one.norm(dim=-1)
            assert off.min() < 1e-4
            assert off.max() < 0.3


@pytest.mark.parametrize("fixture", DENSE)
def test_the_manifest_names_the_weights(fixture: str, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(fixture.replace("runner", "artifact"))
    manifest, (kind, _) = Manifest.read(directory), KINDS[fixture]
    linears: Mapping[str, Any] = manifest.decisions["linears"]
    assert manifest.options["cpu_weights"] == kind
    stored = "int8-rows" if kind == "int8" else "int4-g32-symmetric"
    assert linears["target.layers.*.mlp.up_proj"] == {stored: 3}
    assert linears["target.lm_head"] == {"int8-rows": 1}
    lines = list(report(check_integrity(directory)))
    assert any(f"cpu_weights {kind}," in line for line in lines)
