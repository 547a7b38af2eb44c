"""Heads that tap layers with recurrent states: the text is that of transformers without drafts."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from eagle_aot.export import Pair
from eagle_aot.export.drafters.registry import HEADS
from eagle_aot.runtime_runner.decode.round import Drafter
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.drafters.dflash import DFlashDrafter
from eagle_aot.runtime_runner.drafters.dflash2 import DFlash2Drafter
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.targets import get_target, load_target
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.heads.mtp import MtpText
from support.random_pair import qwen3_5
from support.runner.eager_executor import EagerExecutor
from support.runner.watched import rounds_of

PROMPT, LENGTH, SEQ_LEN = [7, 3, 41, 7, 3, 19, 20, 21, 22, 7, 3, 41, 5], 10, 64
LAYERS = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
DRAFTERS: dict[str, Callable[..., Drafter]] = {
    "eagle3": Eagle3Drafter,
    "dflash": partial(DFlashDrafter, block_size=16),
    "dflash2": partial(DFlash2Drafter, block_size=8, top_k=16),
}


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_head_of_layers_with_states_changes_no_token(kind: str, tmp_path: Path) -> None:
    model = qwen3_5(vocab_size=48, num_hidden_layers=4, layer_types=LAYERS)
    model.save_pretrained(tmp_path)
    target, caches = load_target(tmp_path, SEQ_LEN), CacheSpec(SEQ_LEN, torch.float32)
    torch.manual_seed(0)
    spec = get_target("qwen3_5_text")
    draft, _ = HEADS[kind].without_checkpoint(spec, target, torch.float32, caches)
    assert any(LAYERS[boundary - 1] == "linear_attention" for boundary in draft.tap_layers)
    executor = EagerExecutor(Pair(target, draft))
    drafter = DRAFTERS[kind](executor, executor.artifact, None)
    output, stats, _ = rounds_of(executor, drafter, Shape.chain(4), PROMPT, LENGTH)
    slow = MtpText(model.double(), None, (), list(PROMPT))
    for token in output:
        assert token == slow.greedy(slow.text)
        slow.text.append(token)
    assert len(output) == LENGTH and stats.drafted >= 4 * (stats.rounds - 1)
