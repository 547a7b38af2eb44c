"""The draft head: EAGLE-3 with training-time test.

At inference a head drafts a chain: its first slot reads the target's hidden states, every further
slot reads the head's own output. Training rehearses exactly that, from every position at once.

An *anchor* e is the last slot of the committed text x_0..x_{e+1}. Step 0 is the committed slot e:
(embedding of x_{e+1}, fused feature of position e) at position e, attending to the slots <= e; it
predicts x_{e+2}. Step s is the s-th slot of the chain that starts at e: (embedding of x_{e+s+1},
output of step s-1) at position e+s; it attends to the committed slots <= e and to the steps 1..s of
its own chain, and predicts x_{e+s+2}. Its label is the target's distribution at position e+s+1.

The layers are the head's own and attention that of the export's self-test, which runs the same
chains. `Eagle3Draft.run` cannot be trained through: its caches keep no gradients, and hold one text
where here every anchor has a chain of its own.

Shapes: B rows, T positions (= anchors), H hidden, Vd draft vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Gemma4ForCausalLM
from transformers import PreTrainedTokenizerFast as Tokenizer

from eagle_aot.export.drafters.eagle3.config import DraftConfig
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.self_test.chain import LayerChains
from eagle_aot.targets.decoder.kv_cache import CacheSizes
from tiny_pair.corpus import LENGTH_STEP, Batch, Corpus, corpus_of_rows, first_stories
from tiny_pair.target import generate
from tiny_pair.tokenizer import turn_end_id
from tiny_pair.training import Budget, TrainingProgress, autocast, train

# Boundaries: hidden states after 2, 4 and 5 of the target's six decoder layers.
TAP_LAYERS = (2, 4, 5)
DRAFT_VOCAB_SIZE = 512
TTT_STEPS = 7
STEP_DECAY = 0.8
CHAIN_LEN = 4
# Heads draft answers; a little weight on questions lets them draft other text as well.
QUESTION_WEIGHT = 0.05


@dataclass(frozen=True, slots=True)
class Labels:
    """What the target says: `probabilities` float32 [B, T, Vd] and `weight` float32 [B, T].

    Entry p describes the token that follows position p. The weight is 0 at padding and where the
    target's own choice is outside the draft vocabulary.
    """

    probabilities: Tensor
    weight: Tensor


@dataclass(frozen=True, slots=True)
class HeadResult:
    """A trained head and how it fared: accuracy by step and `tau`, tokens per verify round."""

    draft: Eagle3Draft
    progress: TrainingProgress
    accuracy_by_step: list[float]
    tau: float

    def summary(self) -> dict[str, Any]:
        """What training.json says about the head."""
        return {
            **self.progress.summary(),
            "accuracy_by_step": self.accuracy_by_step,
            "chain_len": CHAIN_LEN,
            "tau": self.tau,
        }


def draft_config(target: Gemma4ForCausalLM) -> DraftConfig:
    """The head's geometry, beside the target's."""
    hidden = target.config.hidden_size
    return DraftConfig(
        hidden_size=hidden,
        target_hidden_size=hidden,
        num_taps=len(TAP_LAYERS),
        vocab_size=target.config.vocab_size,
        draft_vocab_size=DRAFT_VOCAB_SIZE,
        intermediate_size=768,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        norm_before_residual=True,
        tap_layers=TAP_LAYERS,
    )


def build_draft(
    target: Gemma4ForCausalLM, target_ids: Tensor, longest: int, device: torch.device
) -> Eagle3Draft:
    """A fresh head in float32 that shares the target's (frozen, unscaled) embedding rows."""
    draft = Eagle3Draft(draft_config(target), CacheSizes(longest + TTT_STEPS, torch.float32)).to(
        device
    )
    for parameter in draft.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
    table = target.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    with torch.no_grad():
        draft.embed_tokens.weight.copy_(table.weight)
        draft.lm_head.weight.copy_(table.weight[target_ids])
        draft.target_ids.copy_(target_ids)
    draft.embed_tokens.requires_grad_(False)
    return draft


def draft_vocabulary(corpus: Corpus, tokenizer: Tokenizer) -> Tensor:
    """The most frequent tokens of the answers, ascending target ids int64 [Vd]."""
    positions = torch.arange(len(corpus.flat))
    rows = torch.repeat_interleave(torch.arange(len(corpus.lengths)), corpus.lengths)
    in_answer = positions - corpus.offsets[rows] >= corpus.answer_starts[rows]
    counts = torch.bincount(corpus.flat.cpu()[in_answer].long(), minlength=len(tokenizer))
    always = [tokenizer.eos_token_id, turn_end_id(tokenizer), *_ids_of_digits(tokenizer)]
    counts[always] += len(corpus.flat)
    ranked = counts.argsort(descending=True, stable=True)
    return ranked[:DRAFT_VOCAB_SIZE].sort().values


def train_head(
    target: Gemma4ForCausalLM,
    corpus: Corpus,
    tokenizer: Tokenizer,
    budget: Budget,
    seed: int,
    problems: int,
) -> HeadResult:
    """Trains a head on the frozen target and measures it on the target's own held-out answers."""
    device = corpus.flat.device
    longest = int(corpus.lengths.max()) + LENGTH_STEP
    draft = build_draft(target, draft_vocabulary(corpus, tokenizer).to(device), longest, device)
    batches = corpus.batches(budget.tokens, torch.Generator().manual_seed(seed))
    progress = train(draft, "head", budget, lambda: _loss_of_next(draft, target, batches))
    questions = [story.question for story in first_stories(problems, seed, "test")]
    rows = generate(target, tokenizer, questions)
    accuracy, tau = evaluate_head(draft, target, rows)
    return HeadResult(draft, progress, accuracy, tau)


@torch.no_grad()
def read_target(
    target: Gemma4ForCausalLM, draft: Eagle3Draft, batch: Batch
) -> tuple[Tensor, Labels]:
    """One target forward: taps [B, T, taps * H] and the labels for the head."""
    output = target(input_ids=batch.tokens, use_cache=False, output_hidden_states=True)
    taps = torch.cat([output.hidden_states[boundary] for boundary in TAP_LAYERS], dim=-1)
    logits = output.logits.float()
    drafted = torch.isin(logits.argmax(-1), draft.target_ids)
    weight = torch.where(batch.answer, 1.0, QUESTION_WEIGHT) * batch.valid
    # Entry p belongs to the token at p + 1; nothing follows the last one.
    weight = _shift(weight, 1) * drafted
    return taps, Labels(logits[..., draft.target_ids].softmax(-1), weight)


def chain_logits(draft: Eagle3Draft, tokens: Tensor, taps: Tensor, steps: int) -> Iterator[Tensor]:
    """Yields the draft logits [B, T, Vd] of every step, for all anchors, teacher-forced.

    `tokens` int64 [B, T], `taps` [B, T, taps * H]. Entry e of step s predicts x_{e+s+2}; the last
    s + 2 entries have nothing to predict.
    """
    chains = [LayerChains(draft.config.head_dim**-0.5) for _ in draft.layers]
    feature, wiring = draft.fuse(taps), draft.config.wiring
    anchors = torch.arange(tokens.shape[1], device=tokens.device)
    for step in range(steps):
        embedding = draft.embed(_shift(tokens, step + 1))
        attends = [partial(chain.attend, anchors) for chain in chains]
        stream = draft.stream(embedding, feature, anchors + step, attends, wiring)
        logits, feature = draft.read_out(stream, wiring)
        yield logits


def _loss_of_next(
    draft: Eagle3Draft, target: Gemma4ForCausalLM, batches: Iterator[Batch]
) -> tuple[Tensor, int]:
    """Cross entropy against the target's distribution, steps weighted by `STEP_DECAY` ** step."""
    batch = next(batches)
    taps, labels = read_target(target, draft, batch)
    total = torch.zeros((), device=taps.device)
    with autocast(taps.device):
        for step, logits in enumerate(chain_logits(draft, batch.tokens, taps, TTT_STEPS)):
            wanted, weight = _shift(labels.probabilities, step + 1), _shift(labels.weight, step + 1)
            loss = -(wanted * F.log_softmax(logits, dim=-1)).sum(-1)
            total = total + STEP_DECAY**step * (loss * weight).sum() / weight.sum().clamp(min=1)
    return total / sum(STEP_DECAY**step for step in range(TTT_STEPS)), batch.tokens.numel()


@torch.no_grad()
def evaluate_head(
    draft: Eagle3Draft, target: Gemma4ForCausalLM, rows: list[tuple[list[int], int]]
) -> tuple[list[float], float]:
    """Accuracy of every step and tau, on the target's greedy answers (token row, answer start).

    A draft counts as right if it is the token that the target chose. Up to the first wrong one, a
    drafted chain equals the teacher-forced one, so the accepted lengths are exact.
    """
    corpus = corpus_of_rows(rows, target.device)
    batch = corpus.batch(torch.arange(len(rows)))
    taps, _ = read_target(target, draft, batch)
    right = []
    accuracy = []
    for step, logits in enumerate(chain_logits(draft, batch.tokens, taps, TTT_STEPS)):
        hit = draft.target_ids[logits.argmax(-1)] == _shift(batch.tokens, step + 2)
        asked = _shift(batch.answer, step + 2)
        right.append(hit & asked)
        accuracy.append(round((right[-1].sum() / asked.sum()).item(), 4))
    accepted = torch.stack(right[:CHAIN_LEN]).long().cumprod(0).sum(0).tolist()
    rounds = emitted = 0
    for lengths, (ids, start) in zip(accepted, rows, strict=True):
        # Prefill emits x_start; the first anchor is the slot before it.
        known = start + 1
        while known < len(ids):
            gain = min(lengths[known - 2] + 1, len(ids) - known)
            known, emitted, rounds = known + gain, emitted + gain, rounds + 1
    return accuracy, round(emitted / max(rounds, 1), 4)


def _shift(x: Tensor, by: int) -> Tensor:
    """Entry p of the result is entry p + `by` of `x` [B, T, ...]; zeros come in at the end."""
    shifted = torch.zeros_like(x)
    shifted[:, : x.shape[1] - by] = x[:, by:]
    return shifted


def _ids_of_digits(tokenizer: Tokenizer) -> list[int]:
    ids = tokenizer.convert_tokens_to_ids([str(digit) for digit in range(10)])
    assert isinstance(ids, list)
    return ids
