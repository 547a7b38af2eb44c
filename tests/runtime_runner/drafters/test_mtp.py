"""Rounds with an MTP layer, against a slow implementation with transformers' modules."""

from pathlib import Path

import pytest
import torch

from eagle_aot.artifact import DRAFT_DECODE
from eagle_aot.export import Pair
from eagle_aot.export.drafters.mtp import kind
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.drafters.eagle3 import MtpDrafter
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.heads.mtp import MtpText, random_mtp, save_mtp
from support.random_pair import qwen3_5
from support.runner.eager_executor import EagerExecutor
from support.runner.watched import check_rounds

VOCAB, LENGTH, SEQ_LEN = 48, 12, 64
PROMPT = [7, 3, 41, 7, 3, 19, 20, 21, 22, 7, 3, 41, 5]
ATTENTION, STATE = "full_attention", "linear_attention"
CHAINS = [Shape.chain(1), Shape.chain(4), Shape.chain(7)]
TREES = [
    Shape(1, 4, 4),
    Shape(6, 8, 32),
    Shape.of_paths(((0,), (1,), (2,), (0, 0), (0, 3), (1, 1), (0, 3, 0), (1, 1, 2))),
]


def compare(shape: Shape, layers: list[str], directory: Path) -> int:
    """Check all rounds of a text; return how many drafts were accepted."""
    model = qwen3_5(vocab_size=VOCAB, layer_types=layers)
    layer = random_mtp(model)
    save_mtp(directory, model, layer)
    target, caches = load_target(directory, SEQ_LEN), CacheSpec(SEQ_LEN, torch.float32)
    draft, _ = kind.load(Checkpoint(directory), target, torch.float32, caches, None)
    executor = EagerExecutor(Pair(target, draft))
    drafter = MtpDrafter(executor, executor.artifact, None)
    slow = MtpText(model.double(), layer.double(), (), list(PROMPT))
    stats = check_rounds(executor, drafter, shape, slow, LENGTH)
    assert executor.calls[DRAFT_DECODE] == stats.rounds * shape.depth + 1
    return stats.accepted


@pytest.mark.parametrize("shape", CHAINS, ids=str)
def test_chains_after_states_are_those_of_the_formulas(shape: Shape, tmp_path: Path) -> None:
    compare(shape, [STATE, ATTENTION, STATE], tmp_path)


@pytest.mark.parametrize("shape", TREES, ids=str)
def test_trees_of_a_target_that_attends_are_those_of_the_formulas(
    shape: Shape, tmp_path: Path
) -> None:
    accepted = compare(shape, [ATTENTION] * 3, tmp_path)
    assert shape.nodes < 32 or accepted, "nothing is accepted"
