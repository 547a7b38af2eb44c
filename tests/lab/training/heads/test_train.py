"""A head's training: its math against the head's own caches, and going on after a stop."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from eagle_aot.artifact import MASK
from eagle_aot.common.errors import CheckpointError
from eagle_aot.export.drafters.dflash2.checkpoint import CODEBOOKS
from eagle_aot.export.drafters.dflash2.model import DFlash2Draft
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft, ParallelDraft, new_draft
from eagle_aot.lab.training.heads.chains import STEP_DECAY, TTT_STEPS, ChainLoss, read_labels
from eagle_aot.lab.training.heads.corpus import Corpus
from eagle_aot.lab.training.heads.dflash2 import build, head_config
from eagle_aot.lab.training.heads.draft import (
    HeadDraft,
    HeadSizes,
    build_draft,
    draft_config,
    draft_vocabulary,
)
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget, read_target
from eagle_aot.lab.training.heads.learned_mask import KEPT, thinned_anchors
from eagle_aot.lab.training.heads.train import train_head
from eagle_aot.lab.training.loop import Budget, StateFile
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.step import chain_step
from support.gemma_oracle import VOCAB
from support.pre_norm_oracle import random_pre_norm, save

CPU = torch.device("cpu")
SIZES = HeadSizes(draft_vocab_size=48, intermediate_size=32, tap_layers=(1, 2, 3))
BUDGET = Budget(steps=6, tokens=128, learning_rate=1e-2)
MASK_TOKEN = 5
CHAINED = pytest.mark.parametrize("mask", [None, MASK_TOKEN], ids=["eagle3", "p-eagle"])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> FrozenTarget:
    directory = tmp_path_factory.mktemp("llama")
    return read_target("auto", save(random_pre_norm("llama"), directory), CPU)


def corpus(rows: int = 12) -> Corpus:
    rng = random.Random(0)
    texts = [[rng.randrange(VOCAB) for _ in range(rng.randint(12, 30))] for _ in range(rows)]
    return Corpus.of_rows([(ids, rng.randint(1, 8)) for ids in texts], CPU)


def fresh(target: FrozenTarget, mask: int | None = None) -> Eagle3Draft:
    torch.manual_seed(0)
    ids = draft_vocabulary(corpus().answer_counts(VOCAB), SIZES.draft_vocab_size, [3])
    sizes = SIZES if mask is None else replace(SIZES, num_layers=2)
    return build_draft(target, draft_config(target, sizes, mask), ids)


@CHAINED
def test_the_loss_is_that_of_chains_drafted_one_after_another(
    mask: int | None, target: FrozenTarget
) -> None:
    """Of one text, by the sum over anchors and steps as it is defined."""
    draft, (ids, start) = fresh(target, mask), ([*range(20, 34)], 3)
    for parameter in draft.layers.parameters():
        parameter.data *= 8  # fresh ones are so small that a place makes no difference
    batch = Corpus.of_rows([(ids, start)], CPU).batch(torch.tensor([0]))
    taps, labels = read_labels(target, draft, batch)
    thinned = None if mask is None else thinned_anchors(batch.tokens.shape[1], TTT_STEPS, 1, CPU)
    found = ChainLoss(draft, compiled=False)(batch.tokens, taps, labels, thinned)
    logits = target.logits(target.read(batch.tokens)[0])[0]
    drafted = set(draft.target_ids.tolist())
    total = torch.zeros(())
    features = draft.fuse(taps)[0]
    cached = build_cached(draft)
    for step in range(TTT_STEPS):
        nats, weights = torch.zeros(()), 0.0
        for anchor in range(len(ids) - step - 2):
            if thinned is not None and anchor not in thinned[step].tolist():
                continue
            label = anchor + step + 1
            if int(logits[label].argmax()) not in drafted:
                continue
            weight = 1.0 if label + 1 >= start else 0.05
            chosen = slot_logits(cached, batch.tokens[0], features, anchor, step)
            wanted = logits[label, draft.target_ids].softmax(-1)
            nats = nats - weight * (wanted * chosen.log_softmax(-1)).sum()
            weights += weight
        total = total + STEP_DECAY**step * nats / max(weights, 1)
    expected = total / sum(STEP_DECAY**step for step in range(TTT_STEPS))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def build_cached(draft: Eagle3Draft) -> Eagle3Draft:
    """The same head with room for a text, as an export has it."""
    cached = new_draft(draft.config, torch.float32, CacheSpec(64, torch.float32))
    state = draft.state_dict()
    mask = state.pop("mask_hidden", None)
    cached.load_state_dict(state)
    if isinstance(cached, ParallelDraft):
        assert mask is not None
        cached.set_mask(mask)
    return cached


@torch.no_grad()
def slot_logits(
    draft: Eagle3Draft, tokens: torch.Tensor, features: torch.Tensor, anchor: int, step: int
) -> torch.Tensor:
    """Draft logits [Vd] of the last slot of a chain, through the head's caches."""
    draft.reset_cache()
    positions, feature = torch.arange(anchor + 1), features[None, : anchor + 1]
    logits, recurrent = draft.forward_cached(
        draft.embed(tokens[None, 1 : anchor + 2]), feature, positions
    )
    if isinstance(draft, ParallelDraft) and step > 0:
        masks = torch.full((1, step), MASK)
        places = chain_step(torch.arange(anchor + 1, anchor + step + 1))
        logits, _ = draft.run(
            *draft.unmasked(masks, recurrent[:, -1:].expand(-1, step, -1)), places
        )
        return logits[0, -1]
    for slot in range(anchor + 1, anchor + step + 1):
        embedding = draft.embed(tokens[None, [slot + 1]])
        logits, recurrent = draft.forward_cached(embedding, recurrent[:, -1:], torch.tensor([slot]))
    return logits[0, -1]


class Stopped(Exception):
    """What a test stops a training with."""


def stop_at(step: int) -> Callable[[], str]:
    """Return something to add to a line of the report; there is a line for each step."""
    seen = 0

    def report() -> str:
        nonlocal seen
        seen += 1
        if seen == step:
            raise Stopped
        return ""

    return report


def fresh_blocks(target: FrozenTarget) -> DFlash2Draft:
    torch.manual_seed(0)
    sizes = replace(SIZES, num_layers=2, block_size=4, selector_rank=8)
    return build(target, head_config(target, sizes, MASK_TOKEN))


@pytest.mark.parametrize(
    "make",
    [fresh, partial(fresh, mask=MASK_TOKEN), fresh_blocks],
    ids=["eagle3", "p-eagle", "dflash2"],
)
def test_a_training_that_was_stopped_ends_with_the_same_weights(
    make: Callable[[FrozenTarget], HeadDraft], target: FrozenTarget, tmp_path: Path
) -> None:
    whole, stopped, resumed = (make(target) for _ in range(3))
    before = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    train_head(whole, target, corpus(), BUDGET, 0)
    state = StateFile(path=tmp_path / "head.state", every=2, identity="this one")
    with pytest.raises(Stopped):
        train_head(stopped, target, corpus(), BUDGET, 0, state_file=state, on_report=stop_at(4))
    progress = train_head(resumed, target, corpus(), BUDGET, 0, state_file=state)
    assert (progress.steps, len(list(tmp_path.iterdir()))) == (BUDGET.steps, 1)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    assert not torch.equal(whole.fc.weight, before["fc.weight"])
    assert torch.equal(whole.embed_tokens.weight, before["embed_tokens.weight"])
    own = (
        "mask_hidden",
        "layers.1.mlp_conv.base_kernel",
        *(f"{name}.weight" for name in CODEBOOKS),
    )
    for name in set(own) & set(before):
        assert not torch.equal(whole.state_dict()[name], before[name]), name


def test_each_step_rehearses_some_anchors_of_the_step_before() -> None:
    every, *thinned = thinned_anchors(40, TTT_STEPS, 3, CPU)
    assert every.tolist() == [*range(40)]
    assert [len(step) for step in thinned] == [28, 20, 14, 10, 8, 8]
    for step, following in itertools.pairwise(thinned):
        assert torch.equal(step[: len(following)], following)
    assert thinned[0].unique().numel() == 40 * KEPT
    other = thinned_anchors(40, TTT_STEPS, 4, CPU)[1]
    assert not torch.equal(thinned[0].sort().values, other.sort().values)


def test_resume_with_other_options_is_refused(target: FrozenTarget, tmp_path: Path) -> None:
    state = StateFile(path=tmp_path / "head.state", every=2, identity="this one")
    train_head(fresh(target), target, corpus(), BUDGET, 0, state_file=state)
    other = StateFile(path=state.path, every=2, identity="that one")
    with pytest.raises(CheckpointError, match=r"head\.state: of a training with other options"):
        train_head(fresh(target), target, corpus(), BUDGET, 0, state_file=other)


def test_the_vocabulary_is_what_answers_hold_most_and_what_must_be_there() -> None:
    found = Corpus.of_rows([([7, 7, 7, 1, 2, 2], 3), ([9, 4, 4, 4], 1)], CPU).answer_counts(10)
    assert found.tolist() == [0, 1, 2, 0, 3, 0, 0, 0, 0, 0]
    assert draft_vocabulary(found, 3, [8]).tolist() == [2, 4, 8]
