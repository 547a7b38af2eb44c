"""Keys and values in INT8, eagerly on a CPU: one text, however it is decoded."""

from typing import Any

import pytest
import torch

from eagle_aot.export import ExportSpec, load_pair, resolve_checkpoints
from eagle_aot.export.prepare.int4 import dequantize_int4
from eagle_aot.lab.training.tiny.corpus import first_stories
from eagle_aot.runtime_runner import Runner
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.runner.eager_executor import eager_runner

QUESTIONS = [story.question for story in first_stories(5, 0, "test")]
SAMPLED = {"temperature": 0.8, "seed": 7}
SHAPES: tuple[dict[str, Any], ...] = ({"chain_len": 4}, {"chain_len": 7}, {"tree": (4, 3, 15)})


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """The shipped pair with caches for three sequences, which lie in memory as on a GPU."""
    directory, spec = tmp_path_factory.mktemp("int8"), ExportSpec(target_model="gemma4-tiny")
    caches = CacheSpec(256, torch.int8, sequences=3, by_token=True)
    pair = dequantize_int4(load_pair(resolve_checkpoints(spec), torch.float32, caches).pair)
    return eager_runner(pair, directory)


@pytest.mark.parametrize("sampled", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_batches_and_reused_rows_change_no_token(
    runner: Runner, sampled: dict[str, Any]
) -> None:
    """Rows are moved after a tree, and copied for a prompt that begins like another."""
    plain = [runner.generate(text, 60, speculate=False, **sampled) for text in QUESTIONS]
    expected = [text.token_ids for text in plain]
    for shape in SHAPES:
        alone = [runner.generate(text, 60, **shape, **sampled) for text in QUESTIONS]
        together = runner.generate_batch(QUESTIONS, 60, reuse=True, **shape, **sampled)
        for texts in (alone, together):
            assert [text.token_ids for text in texts] == expected
        rounds = sum(text.stats.rounds for text in alone)
        assert sum(text.stats.accepted for text in alone) > 2 * rounds
    assert any(text.cached_tokens for text in together)


def test_most_answers_are_right(runner: Runner) -> None:
    """As with float32: the rounding of keys and values is no more than that."""
    stories = first_stories(20, 0, "test")
    answers = [str(runner.generate(story.question, 100).text) for story in stories]
    right = sum(str(story.final) in text for story, text in zip(stories, answers, strict=True))
    assert right >= 18
