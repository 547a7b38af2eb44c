"""DFlash2 heads in training: what they draft is what z-lab's and speculators' own code drafted."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_aot.export.drafters.dflash2 import kind
from eagle_aot.export.drafters.dflash2.model import BlockConvolution, DFlash2Draft
from eagle_aot.export.drafters.registry import name_of_kind
from eagle_aot.lab.training.heads import blocks
from eagle_aot.lab.training.heads.blocks import (
    GAMMA,
    BlockLoss,
    block_choices,
    block_states,
    draw_anchors,
)
from eagle_aot.lab.training.heads.corpus import Batch, Corpus
from eagle_aot.lab.training.heads.dflash2 import build, head_config
from eagle_aot.lab.training.heads.draft import HeadSizes
from eagle_aot.lab.training.heads.evaluation import evaluate_head
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget, read_target
from eagle_aot.lab.training.heads.head_checkpoint import Verifier, read_head, save_head
from eagle_aot.lab.training.heads.train import train_head
from eagle_aot.lab.training.loop import Budget, trainable
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.step import chain_step
from support.gemma_oracle import VOCAB, random_tokens
from support.golden_cases import golden_case
from support.heads.dflash2 import CASES, SPECULATORS, Z_LAB, dflash2_pair
from support.pre_norm_oracle import random_pre_norm, save

CPU = torch.device("cpu")
TOLERANCE = 1e-4
BLOCK, DRAFTS = 8, 7
MASK_TOKEN, RANK = 5, 32
SIZES = HeadSizes(
    draft_vocab_size=VOCAB,
    intermediate_size=32,
    tap_layers=(1, 2, 3),
    num_layers=2,
    block_size=4,
    selector_rank=RANK,
)

cases = pytest.mark.parametrize("case", [Z_LAB, SPECULATORS])


def golden(case: str) -> tuple[FrozenTarget, DFlash2Draft, dict[str, Tensor]]:
    """A case's target as trainings read it, its head and its numbers."""
    return (
        read_target("auto", CASES / case / "target", CPU),
        dflash2_pair(case)[2],
        golden_case(f"dflash2/{case}")[1],
    )


@cases
@torch.no_grad()
def test_a_block_has_the_logits_of_the_reference_implementation(case: str) -> None:
    """Among blocks of other places, in a batch with another text."""
    target, draft, numbers = golden(case)
    text = numbers["expected.text"]
    place = len(numbers["input.tokens"])
    tokens = torch.stack((text.roll(5), text))
    _, taps = target.read(tokens, draft.tap_layers)
    anchors = torch.tensor([[7, 20, 50], [30, place, place + 3]])
    states = block_states(draft, tokens, taps, anchors, BLOCK)
    logits, _ = draft.read_out(states[1, 1, 1:].unsqueeze(0))
    assert text[place] == numbers["expected.bonus"]
    assert (logits[0] - numbers["expected.block_logits"]).abs().max() < TOLERANCE


@cases
def test_drafts_of_every_round_are_those_of_the_reference_implementation(case: str) -> None:
    """A draft depends on the drafts before it, which are the text's up to the first wrong one."""
    target, draft, numbers = golden(case)
    text, start = numbers["expected.text"], len(numbers["input.tokens"])
    batch = Corpus.of_rows([(text.tolist(), start)], CPU).batch(torch.tensor([0]))
    choices = block_choices(draft, target, batch, DRAFTS)[:, 0]
    place, compared = start, 0
    rounds = zip(numbers["expected.round_accepted"], numbers["expected.round_drafts"], strict=True)
    for accepted, drafts in rounds:
        known = min(int(accepted) + 1, DRAFTS, len(text) - place - 1)
        assert torch.equal(choices[:known, place - 1], drafts[:known])
        place, compared = place + int(accepted) + 1, compared + known
    assert compared > len(text) - start - 3


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(random_pre_norm("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def llama(directory: Path) -> FrozenTarget:
    """Random weights, and so certain of its tokens that they can be learned."""
    target = read_target("auto", directory, CPU)
    assert target.decoder.norm.weight is not None
    target.decoder.norm.weight.mul_(8)
    return target


def fresh(target: FrozenTarget) -> DFlash2Draft:
    torch.manual_seed(0)
    return build(target, head_config(target, SIZES, MASK_TOKEN))


def texts() -> Corpus:
    return Corpus.of_rows([(random_tokens(30, seed)[0].tolist(), 4) for seed in range(12)], CPU)


def random_head(target: FrozenTarget) -> DFlash2Draft:
    """No part of it is small, or zero, as in a fresh one."""
    draft = fresh(target)
    for name, parameter in draft.named_parameters():
        if parameter.requires_grad and parameter.ndim > 1:
            wide = "codebook" in name or "base_kernel" in name
            parameter.data.normal_(std=0.5 if wide else 0.2)
    return draft


def test_a_fresh_head_is_a_dflash_head(llama: FrozenTarget) -> None:
    """Its convolutions change nothing, its selector adds nothing; tables are not trained."""
    draft = fresh(llama)
    x = torch.randn(1, 4, draft.hidden_size)
    for layer in draft.layers:
        conv = layer.get_submodule("mlp_conv")
        assert isinstance(conv, BlockConvolution)
        assert torch.equal(conv(x, conv.kernels(x), 1, torch.arange(4).view(1, 4, 1)), x)
    ids = torch.arange(8).view(1, 2, 4)
    assert not draft.candidate_selector(ids, ids, torch.ones(1, 2, RANK)).any()
    frozen = {name for name, p in draft.named_parameters() if not p.requires_grad}
    assert frozen == {"embed_tokens.weight", "lm_head.weight"}
    assert draft.lm_head.weight.data_ptr() == llama.facts.lm_head_weight.data_ptr()


def test_anchors_are_drawn_from_answers_first() -> None:
    batch = Corpus.of_rows([([*range(20, 36)], 12), ([*range(20, 50)], 4)], CPU).batch(
        torch.tensor([0, 1]), number=3
    )
    anchors = draw_anchors(batch)
    assert anchors.shape == (2, 4) and torch.equal(anchors, anchors.sort(dim=1).values)
    assert set(anchors[0].tolist()) > {12, 13, 14} and anchors[1].min() >= 4
    assert anchors[0].max() < 15 and anchors[1].max() < 29
    assert torch.equal(anchors, draw_anchors(batch))
    other = Batch(batch.tokens, batch.answer, batch.valid, number=4)
    assert not torch.equal(anchors[1], draw_anchors(other)[1])


@pytest.mark.parametrize("kept", [blocks.LOGITS_KEPT, 0], ids=["kept", "computed again"])
def test_the_loss_is_that_of_blocks_drafted_one_after_another(
    kept: int, llama: FrozenTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the head's caches, by the sums over blocks and rows as they are defined."""
    monkeypatch.setattr(blocks, "LOGITS_KEPT", kept)
    monkeypatch.setattr(blocks, "LOGITS_AT_ONCE", 5 * VOCAB)
    draft, start = random_head(llama), 6
    ids = random_tokens(26, 1)[0].tolist()
    batch = Corpus.of_rows([(ids, start)], CPU).batch(torch.tensor([0]), number=2)
    loss = BlockLoss(draft, llama, compiled=False)(batch)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in draft.parameters() if p.requires_grad)
    cached = DFlash2Draft(draft.config, torch.float32, CacheSpec(64, torch.float32))
    cached.load_state_dict(draft.state_dict(), assign=True)
    nats, weights = 0.0, 0.0
    for anchor in draw_anchors(batch)[0].tolist():
        for row in range(1, SIZES.block_size):
            if anchor + row >= len(ids):
                continue
            weight = math.exp(-(row - 1) / GAMMA) * (1.0 if anchor + row >= start else 0.05)
            nats += weight * slow_loss(cached, llama, batch.tokens, anchor, row)
            weights += weight
    assert loss.item() == pytest.approx(nats / weights, rel=1e-4)


@torch.no_grad()
def slow_loss(
    draft: DFlash2Draft, target: FrozenTarget, tokens: Tensor, anchor: int, row: int
) -> float:
    """Both cross entropies of one row of the block at `anchor`, in float64."""
    normed, taps = target.read(tokens, draft.tap_layers)
    wanted = target.logits(normed)[0, anchor + row - 1].double().softmax(-1)
    draft.reset_cache()
    if anchor:
        draft.store(draft.fuse(taps[:, :anchor]), chain_step(torch.arange(anchor)))
    step = chain_step(torch.arange(anchor, anchor + SIZES.block_size))
    block = tokens[:, anchor].unsqueeze(1).expand(1, SIZES.block_size)
    logits, projected = (x[0, row].double() for x in draft.run_block(block, step))
    selector = draft.candidate_selector
    before = selector.predecessor_codebook.weight[tokens[0, anchor + row - 1]].double()
    ids = logits.topk(draft.config.selector_top_k).indices
    after = selector.successor_codebook.weight[ids].double()
    scores = logits[ids] + after @ (before * projected)
    unary = -(wanted * logits.log_softmax(-1)).sum()
    return float(unary - (wanted[ids] * scores.log_softmax(-1)).sum())


@pytest.fixture(scope="module")
def trained(llama: FrozenTarget) -> DFlash2Draft:
    draft = fresh(llama)
    train_head(draft, llama, texts(), Budget(steps=40, tokens=256, learning_rate=1e-2), 0)
    return draft


def test_the_loss_falls(llama: FrozenTarget, trained: DFlash2Draft) -> None:
    batch = texts().batch(torch.arange(12))
    with torch.no_grad():
        before, after = (float(BlockLoss(d, llama, False)(batch)) for d in (fresh(llama), trained))
    assert after < 0.7 * before


@pytest.mark.parametrize(("head_format", "error"), [("bf16", 0.0), ("int8", 0.05)])
def test_the_exporter_reads_what_was_trained(
    head_format: str,
    error: float,
    directory: Path,
    llama: FrozenTarget,
    trained: DFlash2Draft,
    tmp_path: Path,
) -> None:
    """With weights of 16 bits; the selector's tables and the linears may have 8."""
    verifier = Verifier.read(directory, "auto")
    save_head(trained, verifier, 4, tmp_path, head_format=head_format, with_embedding=False)
    checkpoint = Checkpoint(tmp_path)
    assert name_of_kind(checkpoint) == "dflash2"
    target = load_target(directory, 64)
    loaded, facts = kind.load(checkpoint, target, torch.float32, CacheSpec(64, torch.float32), None)
    assert isinstance(loaded, DFlash2Draft) and facts["taps"]["value"] == [1, 2, 3]
    assert loaded.config == trained.config
    assert loaded.embed_tokens.weight.data_ptr() == target.embed_weight.data_ptr()
    for name, parameter in trainable(trained).items():
        stored = loaded.state_dict()[name]
        distance = (stored - parameter.bfloat16()).abs().max()
        assert distance <= error * parameter.abs().max(), name
    proposal = json.loads((tmp_path / "config.json").read_text())["speculators_config"]
    assert proposal["proposal_methods"][0]["speculative_tokens"] == SIZES.block_size - 1
    again = read_head(tmp_path, llama.facts)
    score = evaluate_head(again, llama, texts())
    assert len(score.accuracy_by_step) == 7 and 1 < score.tau["2"] <= score.tau["4"]
