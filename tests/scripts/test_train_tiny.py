"""The training script runs from nothing to a pair that loads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagle_aot.export import Pair, load_draft
from eagle_aot.targets import load_target

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_tiny.py"
SIZES = ["--stories", "300", "--target-batch-tokens", "512", "--head-batch-tokens", "512"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    command = [sys.executable, SCRIPT, "--smoke", "--device", "cpu", *SIZES, "--problems", "2"]
    done = subprocess.run(
        [*map(str, command), "--output-dir", directory],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # the batches are too small for more
    )
    assert done.returncode == 0, done.stderr
    return directory


def test_the_written_target_is_what_transformers_reads(trained: Path) -> None:
    tokens = torch.tensor([[2, 30, 40, 50, 60]])
    target = load_target(trained / "target", 64)
    with torch.no_grad():
        found, _ = target.forward_logits_taps(tokens, torch.arange(5))
        oracle = AutoModelForCausalLM.from_pretrained(trained / "target", dtype=torch.float32)
        expected = oracle(tokens).logits
    assert (found - expected).norm() < 1e-4 * expected.norm()


def test_the_written_head_fits_the_target(trained: Path) -> None:
    target = load_target(trained / "target", 64)
    draft = load_draft(trained / "head", target, 64)
    Pair(target, draft)
    assert draft.config.tap_layers == (2, 4, 5)
    assert torch.equal(draft.embed_tokens.weight, target.embed_weight)


def test_the_record_says_what_was_run(trained: Path) -> None:
    record = json.loads((trained / "training.json").read_text())
    assert record["target"]["device"] == "cpu"
    assert len(record["head"]["accuracy_by_step"]) == 7


@pytest.mark.parametrize("text", ["Tom has 12 pears.", "ünïcödé ✓ 日本", "\t<|turn>x\n\n", "007"])
def test_any_text_survives_the_tokenizer(trained: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained / "target")
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
