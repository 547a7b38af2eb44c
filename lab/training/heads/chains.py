"""Training-time test: the chains that a head drafts, from every position at once.

At inference a head drafts a chain: its first slot reads the target's hidden states, every further
slot reads the head's own output, or is a mask. Training rehearses exactly that, from every position
at once.

An *anchor* e is the last slot of the committed text x_0..x_{e+1}. Step 0 is the committed slot e:
(embedding of x_{e+1}, fused feature of position e) at position e, attending to the slots <= e; it
predicts x_{e+2}. Step s is the s-th slot of the chain that starts at e: (embedding of x_{e+s+1},
output of step s-1), or a mask for both (`Eagle3Draft.next_inputs`), at position e+s; it attends to
the committed slots <= e and to the steps 1..s of its own chain, and predicts x_{e+s+2}. Its label
is the target's distribution at position e+s+1.

The layers are the head's own and attention that of the export's self-test, which runs the same
chains. `Eagle3Draft.run` cannot be trained through: its caches keep no gradients, and hold one text
where here every anchor has a chain of its own.

Shapes: B rows, T positions (= anchors), A anchors of a step, which are all T unless some are left
out, H hidden, Vd draft vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.self_test import LayerChains
from eagle_aot.lab.training.heads.corpus import Batch, shift
from eagle_aot.lab.training.heads.frozen_target import LOGITS_AT_ONCE, FrozenTarget

TTT_STEPS = 7
STEP_DECAY = 0.8

ReadOut = Callable[[Tensor, int], Tensor]
"""Of a step's stream [B, A, H] and its number, the recurrent feature [B, A, H] for the next one."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The target's predictions.

    `probabilities` is [B, T + steps, Vd], `weight` float32 [B, T + steps]. Entry p describes the
    token that follows position p. The weight is 0 at padding, after the text, and where the
    target's own choice is outside the draft vocabulary.
    """

    probabilities: Tensor
    weight: Tensor

    def after(self, step: int, anchors: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return a step's entries for `anchors` int64 [A] or all: [B, A, Vd] and [B, A]."""
        rows: Tensor | slice = slice(step + 1, step + 1 + self.weight.shape[1] - TTT_STEPS)
        if anchors is not None:
            rows = anchors + step + 1
        return self.probabilities[:, rows], self.weight[:, rows]


@torch.no_grad()
def read_labels(target: FrozenTarget, draft: Eagle3Draft, batch: Batch) -> tuple[Tensor, Labels]:
    """Run the target once: return taps [B, T, taps * H] and the labels for the head."""
    normed, taps = target.read(batch.tokens, draft.tap_layers)
    probabilities, drafted = draft_shares(target, draft.target_ids, normed)
    # Entry p belongs to the token at p + 1; nothing follows the last one.
    weight = shift(batch.weights, 1) * drafted
    padded = F.pad(probabilities, (0, 0, 0, TTT_STEPS))
    return taps, Labels(padded, F.pad(weight, (0, TTT_STEPS)))


def draft_shares(target: FrozenTarget, target_ids: Tensor, normed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the target's distribution over the draft vocabulary, and whether its choice is in it.

    `normed` [B, T, H] -> [B, T, Vd] in the target's dtype and bool [B, T]. Logits of the whole
    vocabulary are made for a few rows at a time.
    """
    is_drafted = torch.zeros(target.facts.vocab_size, dtype=torch.bool, device=normed.device)
    is_drafted.index_fill_(0, target_ids, True)
    rows = normed.flatten(0, 1)
    shares = rows.new_empty(len(rows), len(target_ids))
    drafted = torch.empty(len(rows), dtype=torch.bool, device=rows.device)
    for part in torch.arange(len(rows)).split(max(1, LOGITS_AT_ONCE // target.facts.vocab_size)):
        span = slice(int(part[0]), int(part[-1]) + 1)
        logits = target.logits(rows[span].unsqueeze(0))[0]
        drafted[span] = is_drafted[logits.argmax(-1)]
        shares[span] = logits[:, target_ids].softmax(-1)
    shape = normed.shape[:2]
    return shares.unflatten(0, shape), drafted.unflatten(0, shape)


def walk_chains(
    draft: Eagle3Draft, tokens: Tensor, taps: Tensor, anchors: Sequence[Tensor], read_out: ReadOut
) -> None:
    """Run the chains of many anchors, teacher-forced; `read_out` gets every step's stream.

    `tokens` int64 [B, T], `taps` [B, T, taps * H]. `anchors` are those of each step, int64 [A]:
    first all in order, then the first A of the step before; a head that reads its own drafts has
    all in each. The entry of anchor e in step s predicts x_{e+s+2}; the last s + 2 anchors have
    nothing to predict.
    """
    chains = [LayerChains(draft.config.head_dim**-0.5) for _ in draft.layers]
    feature, wiring = draft.fuse(taps), draft.config.wiring
    for step, seen in enumerate(anchors):
        embedding = draft.embed(shift(tokens, step + 1)[:, seen])
        if step > 0:
            embedding, feature = draft.next_inputs(embedding, feature[:, : len(seen)])
        attends = [partial(chain.attend, seen) for chain in chains]
        stream = draft.stream(embedding, feature, seen + step, attends, wiring)
        feature = read_out(stream, step)


def every_anchor(tokens: Tensor, steps: int) -> list[Tensor]:
    """Return all positions of `tokens` [B, T] for each step, int64 [T] each."""
    return [torch.arange(tokens.shape[1], device=tokens.device)] * steps


@torch.no_grad()
def chain_choices(draft: Eagle3Draft, tokens: Tensor, taps: Tensor, steps: int) -> Iterator[Tensor]:
    """Return the target ids that the head finds most probable at every step, int64 [B, T] each."""
    choices = []

    def choose(stream: Tensor, step: int) -> Tensor:
        logits, feature = draft.read_out(stream, draft.config.wiring)
        choices.append(draft.target_ids[logits.argmax(-1)])
        return feature

    with torch.compiler.set_stance("force_eager"):  # rather than compile it without gradients too
        walk_chains(draft, tokens, taps, every_anchor(tokens, steps), choose)
    return iter(choices)


class ChainLoss:
    """Cross entropy against the target's distribution, steps weighted by `STEP_DECAY` ** step."""

    def __init__(self, draft: Eagle3Draft, compiled: bool) -> None:
        """With `compiled`, fuse what surrounds the head's products, which takes a minute."""
        self.draft = draft
        self._step_loss = torch.compile(step_loss, dynamic=True) if compiled else step_loss
        if compiled:
            compile_layers(draft)

    def __call__(
        self, tokens: Tensor, taps: Tensor, labels: Labels, thinned: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Return a scalar; `tokens` int64 [B, T], `taps` [B, T, taps * H].

        `thinned` are the anchors of each step where they are not all of them.
        """
        losses: list[Tensor] = []

        def read_out(stream: Tensor, step: int) -> Tensor:
            seen = None if thinned is None else thinned[step]
            loss, feature = self._step_loss(self.draft, stream, *labels.after(step, seen))
            losses.append(STEP_DECAY**step * loss)
            return feature

        anchors = thinned or every_anchor(tokens, TTT_STEPS)
        walk_chains(self.draft, tokens, taps, anchors, read_out)
        return torch.stack(losses).sum() / sum(STEP_DECAY**step for step in range(TTT_STEPS))


def step_loss(
    draft: Eagle3Draft, stream: Tensor, probabilities: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return one step's weighted mean cross entropy, and its recurrent feature [B, A, H].

    `stream` [B, A, H], `probabilities` [B, A, Vd] and `weight` [B, A] as `Labels.after` gives them.
    """
    logits, feature = draft.read_out(stream, draft.config.wiring)
    nats = -(probabilities * F.log_softmax(logits, dim=-1)).sum(-1)
    return (nats * weight).sum() / weight.sum().clamp(min=1), feature


def compile_layers(draft: Eagle3Draft) -> None:
    """Fuse norms, rotation and activation of the layers; attention stays as it is."""
    for layer in draft.layers:
        for half in ("project", "finish"):
            setattr(layer, half, torch.compile(getattr(layer, half), dynamic=True))
