"""Chains of drafts from every position of a text at once, under one reading of the head.

As EAGLE-3 trains (its training-time test): from an anchor e, step 0 is the committed slot e; step s
is the s-th slot of the chain behind it, which sees the committed slots up to e and the steps of its
own chain. Every step is handed the token that the target chose, so a chain is what drafting would
give up to its first wrong draft, and that is all that acceptance asks; a head that drafts in
parallel is handed its mask. Shapes: S slots, A anchors,
H draft hidden, Vd draft vocabulary, D head width.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.self_test.reading import Reading
from eagle_aot.export.drafters.self_test.text import Text


@torch.no_grad()
def chain_logits(draft: Eagle3Draft, reading: Reading, text: Text, steps: int) -> Iterator[Tensor]:
    """Yields the draft logits of every step, float32 [A, Vd].

    Row a of step s predicts token `text.first_anchor` + a + s + 2; rows for which there is none
    hold no meaning.
    """
    device, last = text.tokens.device, text.tokens.shape[1] - 1
    slots = torch.arange(text.slots, device=device)
    anchors = slots[text.first_anchor :]
    feature = draft.fuse(text.taps(reading.tap_layers))
    if reading.misaligned:
        feature = feature.roll(text.slots // 2, dims=1)
    chains = [LayerChains(draft.config.head_dim**-0.5) for _ in draft.layers]
    positions = seen = slots
    for step in range(steps):
        embedding = draft.embed(text.tokens[:, (positions + 1).clamp(max=last)])
        if step > 0:
            embedding, feature = draft.further(embedding, feature)
        attends = [partial(chain.attend, seen) for chain in chains]
        stream = draft.stream(embedding, feature, positions, attends, reading.wiring)
        if step == 0:
            stream = stream[:, text.first_anchor :]
        logits, feature = draft.read_out(stream, reading.wiring)
        yield logits[0]
        positions, seen = anchors + step + 1, anchors


class LayerChains:
    """Keys and values of one layer: those of all slots, then those of one step after another."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def attend(self, seen: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One step's rows: q [1, T, heads, D], k and v [1, T, kv_heads, D] -> as q.

        Row t sees the slots up to `seen` int64 [T], and of all later steps its own row. A step may
        have fewer rows than the one before, the first ones of it.
        """
        q, k, v = (x.transpose(1, 2) for x in (q * self._scale, k, v))
        group = q.shape[1] // k.shape[1]
        self._keys.append(k.repeat_interleave(group, dim=1))
        self._values.append(v.repeat_interleave(group, dim=1))
        keys, *own_keys = self._keys
        values, *own_values = self._values
        slots, rows = keys.shape[2], q.shape[2]
        hidden = torch.arange(slots, device=q.device) > seen.unsqueeze(-1)
        scores = [(q @ keys.transpose(-1, -2)).masked_fill(hidden, float("-inf"))]
        scores += [(q * key[:, :, :rows]).sum(-1, keepdim=True) for key in own_keys]
        weights = torch.cat(scores, dim=-1).float().softmax(-1).to(values.dtype)
        mixed = weights[..., :slots] @ values
        for i, value in enumerate(own_values):
            mixed = mixed + weights[..., slots + i, None] * value[:, :, :rows]
        return mixed.transpose(1, 2)
