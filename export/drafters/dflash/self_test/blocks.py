"""Blocks behind every position of a text at once, under one reading of the head.

Shapes: S slots of the text, A anchors, T rows of a block, H the head's width, D a head's.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from eagle_aot.export.drafters.dflash.model import DFlashDraft
from eagle_aot.export.drafters.dflash.self_test.reading import Reading
from eagle_aot.export.drafters.self_test.text import Text
from eagle_aot.targets.decoder.kv_cache import KVCache, StepView
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.targets.pre_norm.config import SLIDING


class TextView(StepView):
    """What blocks see: of the text the slots up to their anchor, and themselves.

    Stands where a layer looks for a cache: what is stored first is the text, then come the blocks.
    """

    def __init__(self, anchors: Tensor, rows: int, *, causal: bool, window: int) -> None:
        self._anchors, self._rows = anchors, rows
        self._causal, self._window = causal, window
        self._stored: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def attends_at_once(self, heads: int, dtype: torch.dtype, cache: KVCache) -> bool:
        """No operator is made for this."""
        return False

    def store(self, cache: KVCache, k: Tensor, v: Tensor) -> None:
        """k, v [1, S or A * T, kv_heads, D] of the cache's layer."""
        self._stored.setdefault(id(cache), []).append((k[0], v[0]))

    def attend(self, cache: KVCache, q: Tensor, scale: float) -> Tensor:
        """`q` [1, A * T, heads, D] over text and block; same shape and dtype."""
        group = q.shape[2] // cache.k.shape[0]
        text, blocks = (
            [x.repeat_interleave(group, dim=1).transpose(0, 1) for x in pair]
            for pair in self._stored[id(cache)]
        )
        heads = q.shape[2]
        ours = q[0].transpose(0, 1) * scale  # [heads, A * T, D]
        own_k, own_v, own_q = (
            x.unflatten(1, (-1, self._rows)).flatten(0, 1) for x in (*blocks, ours)
        )
        outside = (ours @ text[0].transpose(1, 2)).masked_fill(self._hidden_text(), -torch.inf)
        inside = (own_q @ own_k.transpose(1, 2)).masked_fill(self._hidden_rows(), -torch.inf)
        inside = inside.unflatten(0, (heads, -1)).flatten(1, 2)
        weights = torch.cat((outside, inside), dim=-1).float().softmax(-1).to(q.dtype)
        mixed = weights[..., : outside.shape[2]] @ text[1]
        own = weights[..., outside.shape[2] :].unflatten(1, (-1, self._rows)).flatten(0, 1) @ own_v
        both = mixed + own.unflatten(0, (heads, -1)).flatten(1, 2)
        return both.transpose(0, 1).unsqueeze(0)

    def _hidden_text(self) -> Tensor:
        """bool [A * T, S]: what is behind an anchor, or before a row's window."""
        row = torch.arange(self._rows, device=self._anchors.device)
        anchor = self._anchors.repeat_interleave(self._rows).unsqueeze(1)
        place = (self._anchors.unsqueeze(1) + 1 + row).flatten().unsqueeze(1)
        slot = torch.arange(int(self._anchors[-1]) + 1, device=row.device)
        hidden = slot > anchor
        return hidden | (place - slot >= self._window) if self._window else hidden

    def _hidden_rows(self) -> Tensor:
        """bool [T, T]: what is behind a row of a causal block."""
        row = torch.arange(self._rows, device=self._anchors.device)
        return (row > row.unsqueeze(1)) & self._causal


@torch.no_grad()
def block_logits(draft: DFlashDraft, reading: Reading, text: Text, steps: int) -> Iterator[Tensor]:
    """Yields the logits of every step of the blocks from all anchors, float32 [A, Vd].

    Row a of step s predicts token `text.first_anchor` + a + s + 2; rows for which there is none
    hold no meaning.
    """
    device, rows = text.tokens.device, max(draft.config.block_size, steps + 1)
    anchors = torch.arange(text.first_anchor, text.slots, device=device)
    features = draft.fuse(text.taps(reading.tap_layers))
    if reading.misaligned:
        features = features.roll(text.slots // 2, dims=1)
    bonus = text.tokens[0, anchors + 1].unsqueeze(1).expand(-1, rows)
    places = (anchors.unsqueeze(1) + 1 + torch.arange(rows, device=device)).view(1, -1)
    views = {
        kind: TextView(
            anchors,
            rows,
            causal=not reading.both_ways or (kind == SLIDING and draft.config.causal_windows),
            window=draft.config.layers.sliding_window if kind == SLIDING else 0,
        )
        for kind in set(draft.config.layers.layer_types)
    }
    where = torch.arange(text.slots, device=device).unsqueeze(0)
    draft.store_in(features, {kind: Context(v, draft.rotary(where)) for kind, v in views.items()})
    contexts = {kind: Context(view, draft.rotary(places)) for kind, view in views.items()}
    logits = draft.blocks(bonus, contexts, reading.embedding_scale).unflatten(1, (-1, rows))[0]
    for step in range(steps):
        yield logits[:, step + (0 if reading.shifted else 1)]
