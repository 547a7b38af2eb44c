"""A head observes prompts by a method of its own, where the artifact has one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eagle_aot.artifact import DRAFT_DECODE, DRAFT_PREFILL
from eagle_aot.export import Pair, load_draft
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.runtime_runner.decode.acceptance import committed
from eagle_aot.runtime_runner.decode.input_embeds import InputEmbeds
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.targets import load_target
from support.gemma_oracle import VOCAB, random_gemma, random_tokens, save_text_layout
from support.heads.files import HeadShape, write_speculators
from support.runner import logging_executor
from support.runner.eager_executor import EagerExecutor, prefilled

PROMPT = 96 + 80 + 3
"""Two chunks of prefill, and three rows of target_verify."""

CONSTANTS = replace(logging_executor.CONSTANTS, hidden_size=32)


class Logged(EagerExecutor):
    """Keeps the number of rows of each call."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair)
        self.rows: list[tuple[str, int]] = []

    def run(self, method: str, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.rows.append((method, inputs[0].shape[1]))
        return super().run(method, *inputs)


def observed(pair: Pair, stores_prompts: bool) -> tuple[list[tuple[str, int]], Eagle3Drafter]:
    """Return the rows of the head's calls while it observes a prompt, and the drafter after it."""
    pair.reset_cache()
    executor = Logged(pair)
    drafter = Eagle3Drafter(executor, executor.artifact, None, stores_prompts)
    prefilled(executor, drafter, random_tokens(PROMPT)[0].tolist())
    return [call for call in executor.rows if call[0].startswith("draft")], drafter


@pytest.mark.parametrize("layers", [1, 3])
def test_both_methods_store_the_same_caches(layers: int, tmp_path: Path) -> None:
    """And give the same logits after the prompt, but for sums in another order."""
    head = HeadShape(num_layers=layers, vocab=VOCAB, draft_vocab=VOCAB, own_embedding=True)
    target = load_target(save_text_layout(random_gemma(), tmp_path / "target"), 256)
    draft = load_draft(write_speculators(tmp_path / "head", head, [0, 1, 3]), target, 256)
    assert isinstance(draft, Eagle3Draft)
    pair = Pair(target, draft)
    rows, drafter = observed(pair, stores_prompts=False)
    caches = [cache.k.clone() for cache in draft._caches()]
    other_rows, other = observed(pair, stores_prompts=True)
    chunks = [length for _, length in rows if length > 64]
    assert chunks and rows == [(DRAFT_DECODE, length) for _, length in rows]
    assert [length for name, length in other_rows if name == DRAFT_PREFILL] == chunks
    assert other_rows.count((DRAFT_DECODE, 1)) >= len(chunks)
    for cache, before in zip(draft._caches(), caches, strict=True):
        torch.testing.assert_close(cache.k[:, :PROMPT], before[:, :PROMPT], rtol=1e-4, atol=1e-5)
        assert cache.k[:, :PROMPT].any()
    for found, expected in ((other._logits, drafter._logits), (other._feature, drafter._feature)):
        assert found is not None and expected is not None
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


class RecordingExecutor(logging_executor.LoggingExecutor):
    """Keeps the inputs of `draft_prefill`."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[tuple[torch.Tensor, ...]] = []

    def run(self, method: str, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if method == DRAFT_PREFILL:
            self.stored.append(inputs)
        rows, features = inputs[0].shape[1], inputs[-1]
        return torch.zeros(1, rows, logging_executor.VOCAB), features


def test_rows_of_images_are_stored_one_slot_early_and_padded() -> None:
    """Of a chunk of 10 rows, which 55 rows of padding make long enough for `draft_prefill`."""
    executor, count, padding = RecordingExecutor(), 10, 55
    drafter = Eagle3Drafter(executor, CONSTANTS, None, True, reads_images=True)
    embeddings = torch.randn(1, count + padding, 32)
    last_visible = torch.full((count + padding,), -1)
    last_visible[3:8] = 7  # the rows of an image
    tokens, positions = torch.arange(1, count + 1).unsqueeze(0), torch.arange(count)
    chunk = committed(tokens, positions, torch.zeros(1, dtype=torch.int64))
    features = torch.randn(1, count, 32)
    drafter.observe_images(chunk, features, InputEmbeds(embeddings, last_visible))
    (stored,) = executor.stored
    shapes = [tuple(rows.shape) for rows in stored]
    assert shapes == [(1, 65), (65,), (1,), (1, 65, 32), (1, 65, 32), (1, 65)]
    assert torch.equal(stored[3][:, :count], features) and not stored[3][:, count:].any()
    assert stored[5][0].nonzero().flatten().tolist() == [2, 3, 4, 5, 6]
    assert torch.equal(stored[4][0, 2:7], embeddings[0, 3:8])


def test_a_text_prompt_has_no_rows_of_images() -> None:
    executor = RecordingExecutor()
    drafter = Eagle3Drafter(executor, CONSTANTS, None, True, reads_images=True)
    positions = torch.arange(70)
    chunk = committed(positions.unsqueeze(0), positions, torch.zeros(1, dtype=torch.int64))
    drafter.observe(chunk, torch.randn(1, 70, 32))
    (stored,) = executor.stored
    assert len(stored) == 6 and not stored[4].any() and not stored[5].any()
