"""Blocks that a DFlash2 head drafts, from many places of a text at once, and their loss.

An *anchor* a is the position of a bonus token: the text before it is committed. Its block has n
rows at the positions a .. a + n - 1, the bonus token and masks, as the head drafts it: every row
sees the text before a, within a window if there is one, and the rows of its own block. Row i
predicts the token at a + i from the row's state, and the selector weighs candidates after the token
before it; in training that is the text's own.

The loss is the sum of two cross entropies against the target's distribution at each place: of the
logits, over the whole vocabulary, and of the selector's scores, over the `selector_top_k` likeliest
tokens, where the target's probability of all others counts for nothing. Both weigh row i by
exp(-(i - 1) / gamma): equation 4 of DFlash (arXiv 2602.06036). The selector's term is that of NeMo
AutoModel's `dflash2_core` and of speculators (pull request 1006), with the target's distribution in
place of the next token.

Shapes: B texts, T columns, A anchors of each, n rows of a block, K = n - 1 drafts, C candidates, H
hidden, V vocabulary.
"""

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from eagle_aot.export.drafters.dflash2.model import BlockContext, DFlash2Draft, DFlash2Layer
from eagle_aot.lab.training.heads.corpus import Batch, shift
from eagle_aot.lab.training.heads.frozen_target import (
    LOGITS_AT_ONCE,
    FrozenTarget,
    attend_grouped,
)
from eagle_aot.lab.training.loop import autocast
from eagle_aot.targets.decoder.cache_views import View
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.targets.pre_norm.config import SLIDING

GAMMA = 4.0
"""Of the weights of rows; that of speculators' training, for blocks of 8."""
COLUMNS_PER_ANCHOR = 8
"""With blocks of 8 as many rows are trained as the target reads."""
LOGITS_KEPT = 2**31
"""More logits in a batch are computed again in the backward pass: these are 8 GB in float32."""


class BlocksView:
    """Rows of blocks that see the text before them and their block; `seen` is bool
    [B, 1, A * n, T + A * n]. A layer stores the text's keys and values first."""

    def __init__(self, seen: Tensor) -> None:
        self._seen = seen
        self._stored: dict[KVCache, list[tuple[Tensor, Tensor]]] = {}

    def store(self, cache: KVCache, k: Tensor, v: Tensor) -> None:
        """Keep `k`, `v` [B, rows, kv_heads, D]; the cache itself stays as it is."""
        self._stored.setdefault(cache, []).append((k, v))

    def uses_operator(self, heads: int, dtype: torch.dtype, cache: KVCache) -> bool:
        """Never: nothing is stored here for an operator to read."""
        return False

    def attend(self, cache: KVCache, q: Tensor, scale: float) -> Tensor:
        """Attend with `q` [B, A * n, heads, D] to all that was stored; same shape and dtype."""
        keys, values = zip(*self._stored.pop(cache), strict=True)
        return attend_grouped(q, torch.cat(keys, 1), torch.cat(values, 1), scale, self._seen)


def seen_by_rows(draft: DFlash2Draft, kind: str, anchors: Tensor, columns: int, n: int) -> Tensor:
    """Return what the rows of blocks see in layers of a kind, bool [B, 1, A * n, T + A * n].

    `anchors` int64 [B, A]; T = `columns` of the text come first.
    """
    config, device = draft.config, anchors.device
    row, column = torch.arange(n, device=device), torch.arange(columns, device=device)
    age = row.unsqueeze(-1) - row
    block = torch.ones_like(age, dtype=torch.bool)
    text = (column < anchors.unsqueeze(-1)).unsqueeze(2).expand(-1, -1, n, -1)
    if config.causal or (config.causal_windows and kind == SLIDING):
        block = age >= 0
    if kind == SLIDING:
        window = config.layers.sliding_window
        block = block & (age.abs() < window)
        text = text & ((anchors.unsqueeze(-1) + row).unsqueeze(-1) - column < window)
    same = torch.eye(anchors.shape[1], dtype=torch.bool, device=device)
    own = (same[:, None, :, None] & block[None, :, None, :]).flatten(2).flatten(0, 1)
    return torch.cat((text.flatten(1, 2), own.expand(len(anchors), -1, -1)), dim=-1).unsqueeze(1)


def block_states(
    draft: DFlash2Draft, tokens: Tensor, taps: Tensor, anchors: Tensor, n: int
) -> Tensor:
    """Run a block of `n` rows at each of `anchors` int64 [B, A]; return its states [B, A, n, H].

    `tokens` int64 [B, T], `taps` [B, T, taps * Ht].
    """
    columns, row = tokens.shape[1], torch.arange(n, device=tokens.device)
    bonus = tokens.gather(1, anchors).unsqueeze(-1)
    rows = torch.where(row == 0, bonus, draft.config.mask_token_id).flatten(1)
    rotary = draft.rotary((anchors.unsqueeze(-1) + row).flatten(1))
    of_text = draft.rotary(torch.arange(columns, device=tokens.device).unsqueeze(0))
    number = row.repeat(anchors.shape[1]).view(1, -1, 1)
    views = {
        kind: cast(View, BlocksView(seen_by_rows(draft, kind, anchors, columns, n)))
        for kind in set(draft.config.layers.layer_types)
    }
    contexts = {kind: BlockContext(view, rotary, number) for kind, view in views.items()}
    features = draft.fuse(taps)
    for layer in draft.layers:
        assert isinstance(layer, DFlash2Layer)
        layer.store(features, Context(views[layer.kind], of_text))
    return draft.fill_in(rows, contexts).unflatten(1, (-1, n))


def draw_anchors(batch: Batch) -> Tensor:
    """Return one of `COLUMNS_PER_ANCHOR` positions of each text, ascending int64 [B, A].

    They are drawn from the batch's number, first from those of answers that a token follows.
    """
    generator = torch.Generator().manual_seed(batch.number)
    order = torch.rand(batch.tokens.shape, generator=generator)
    order = order.to(batch.tokens.device, non_blocking=True) + batch.answer.float()
    order = order.masked_fill(~shift(batch.valid, 1), -1.0)
    count = max(1, batch.tokens.shape[1] // COLUMNS_PER_ANCHOR)
    return order.topk(count, dim=1).indices.sort(dim=1).values


def place_loss(
    draft: DFlash2Draft,
    target: FrozenTarget,
    states: Tensor,
    normed: Tensor,
    before: Tensor,
    weight: Tensor,
) -> Tensor:
    """Return the weighted sum of both cross entropies at R places.

    `states` [R, H] are the head's, `normed` [R, Ht] the target's one place earlier, `before` int64
    [R] the tokens there, `weight` float32 [R].
    """
    with torch.no_grad():
        wanted = target.logits(normed.unsqueeze(0)).softmax(-1)
    with autocast(target.device):
        logits, projected = draft.read_out(states.unsqueeze(0))
    nats = -(wanted * F.log_softmax(logits, dim=-1)).sum(-1)
    ids = logits.detach().topk(draft.config.selector_top_k, dim=-1).indices
    gains = draft.candidate_selector(before.view(1, -1, 1), ids, projected)[:, :, 0]
    scores = F.log_softmax(logits.gather(-1, ids) + gains, dim=-1)
    nats = nats - (wanted.gather(-1, ids) * scores).sum(-1)
    return (nats[0] * weight).sum()


class BlockLoss:
    """The loss of a batch's blocks, as the module says."""

    def __init__(self, draft: DFlash2Draft, target: FrozenTarget, compiled: bool) -> None:
        """With `compiled`, fuse what surrounds the products of the loss and the convolutions."""
        self.draft, self.target = draft, target
        self._place_loss = partial(place_loss, draft, target)
        if compiled:
            self._place_loss = partial(torch.compile(place_loss, dynamic=True), draft, target)
            for layer in draft.layers:
                for name in ("attention_conv", "mlp_conv"):
                    conv = layer.get_submodule(name)
                    conv.forward = torch.compile(conv.forward, dynamic=True)

    def __call__(self, batch: Batch) -> Tensor:
        """Return the mean over places by their weights, a scalar."""
        draft, columns = self.draft, batch.tokens.shape[1]
        normed, taps = self.target.read(batch.tokens, draft.tap_layers)
        anchors, n = draw_anchors(batch), draft.config.block_size
        with autocast(self.target.device):
            states = block_states(draft, batch.tokens, taps, anchors, n)[:, :, 1:]
        drafted = torch.arange(1, n, device=anchors.device)
        places = anchors.unsqueeze(-1) + drafted
        before = (places - 1).clamp(max=columns - 1).flatten(1)
        weights = F.pad(batch.weights, (0, n)).gather(1, places.flatten(1))
        weights = weights * torch.exp((1 - drafted) / GAMMA).repeat(anchors.shape[1])
        which = torch.arange(len(before), device=before.device).unsqueeze(-1)
        rows = (
            states.flatten(0, 2),
            normed[which, before].flatten(0, 1),
            batch.tokens.gather(1, before).flatten(),
            weights.flatten(),
        )
        return self._total(rows) / weights.sum().clamp(min=1)

    def _total(self, rows: Sequence[Tensor]) -> Tensor:
        """Sum `place_loss` over `rows`, [R, ...] each, some at a time."""
        vocab_size = self.target.facts.vocab_size
        parts = zip(*(x.split(max(1, LOGITS_AT_ONCE // vocab_size)) for x in rows), strict=True)
        if rows[0].shape[0] * vocab_size <= LOGITS_KEPT:
            return torch.stack([self._place_loss(*part) for part in parts]).sum()
        again = partial(checkpoint, self._place_loss, use_reentrant=False)
        return torch.stack([again(*part) for part in parts]).sum()


@torch.no_grad()
def block_choices(draft: DFlash2Draft, target: FrozenTarget, batch: Batch, count: int) -> Tensor:
    """Return the drafts after each position p of the texts, int64 [K, B, T] for K = `count`.

    Draft k is that of the token at p + k + 2: the bonus token at p + 1 is the text's, and so is the
    token before each draft. Positions after which no answer has drafts are not run, and have zeros.
    """
    _, taps = target.read(batch.tokens, draft.tap_layers)
    texts, columns = batch.tokens.shape
    choices = torch.zeros(count, texts, columns, dtype=torch.int64, device=taps.device)
    wanted = shift(batch.answer, 2).any(0).nonzero().flatten()
    at_once = max(1, LOGITS_AT_ONCE // (target.facts.vocab_size * texts * count))
    for part in wanted.split(at_once):
        anchors = (part + 1).expand(texts, -1)
        with autocast(target.device):
            states = block_states(draft, batch.tokens, taps, anchors, count + 1)[:, :, 1:]
            logits, projected = draft.read_out(states.flatten(1, 2))
        places = anchors.unsqueeze(-1) + torch.arange(count, device=part.device)
        before = batch.tokens.gather(1, places.flatten(1).clamp(max=columns - 1))
        unary, ids = logits.topk(draft.config.selector_top_k, dim=-1)
        gains = draft.candidate_selector(before.unsqueeze(-1), ids, projected)[:, :, 0]
        best = ids.gather(-1, (unary + gains).argmax(-1, keepdim=True))
        choices[:, :, part] = best.view(texts, -1, count).permute(2, 0, 1)
    return choices
