"""Store the keys and values of many texts at once, in memory that never moves.

B slots, each with room for one text of L positions. A decode step is a fixed list of kernels over
the first S positions of all slots, so that it can be recorded as a CUDA graph for every S; all that
changes lies in tensors. G query heads to a key head, D head dimension.
"""

import torch
from torch import Tensor

from eagle_aot.lab.training.heads.frozen_target import CausalView, FrozenTarget
from eagle_aot.targets.decoder.attention import MASKED
from eagle_aot.targets.decoder.kv_cache import KVCache

Store = dict[KVCache, tuple[Tensor, Tensor]]
"""Keys and values [B, kv_heads, L, D] of every layer, by the cache that it would use."""


def new_store(target: FrozenTarget, slots: int, length: int) -> Store:
    """Return a store of zeros for every layer."""
    store = {}
    for layer in target.decoder.layers:
        cache = layer.get_submodule("self_attn.kv_cache")
        assert isinstance(cache, KVCache)
        heads, _, head_dim = cache.k.shape
        shape = slots, heads, length, head_dim
        new = (torch.zeros(shape, dtype=target.dtype, device=target.device) for _ in "kv")
        store[cache] = next(new), next(new)
    return store


@torch.no_grad()
def prefill(target: FrozenTarget, store: Store, slots: Tensor, tokens: Tensor) -> None:
    """Store the keys and values of `tokens` int64 [R, T] in `slots` int64 [R].

    What padding at the end of a row leaves there is overwritten before it is seen.
    """
    if len(slots) == 1:  # a compiler makes another program for a batch of one
        slots, tokens = slots.repeat(2), tokens.repeat(2, 1)
    width = tokens.shape[1]

    def keep(cache: KVCache, view: object) -> None:
        assert isinstance(view, CausalView) and view.latest is not None
        for buffer, new in zip(store[cache], view.latest, strict=True):
            buffer[slots, :, :width] = new.transpose(1, 2)

    target.read(tokens, after=keep)


class SlotView:
    """One new row a slot, which sees what its slot holds up to its own position.

    Nothing here takes a number from the host: a graph that is recorded could not wait for it.
    """

    def __init__(self, store: Store, positions: Tensor, attended: int) -> None:
        """`positions` int64 [B]; S = `attended` is more than each of them."""
        self._store, self._positions, self._attended = store, positions, attended
        self._slots = torch.arange(len(positions), device=positions.device)
        self._masks: dict[int, Tensor] = {}

    def store(self, cache: KVCache, k: Tensor, v: Tensor) -> None:
        """Store `k`, `v` [B, 1, kv_heads, D] at the positions."""
        for buffer, new in zip(self._store[cache], (k, v), strict=True):
            buffer[self._slots, :, self._positions] = new[:, 0]

    def uses_operator(self, heads: int, dtype: torch.dtype, cache: KVCache) -> bool:
        """Never: slots here are not where an operator would read them."""
        return False

    def attend(self, cache: KVCache, q: Tensor, scale: float) -> Tensor:
        """Attend with `q` [B, 1, heads, D] to the slots; same shape and dtype."""
        keys, values = (x[:, :, : self._attended] for x in self._store[cache])
        slots, kv_heads = keys.shape[:2]
        grouped = (q * scale).view(slots * kv_heads, -1, q.shape[-1])
        scores = torch.bmm(grouped, keys.flatten(0, 1).transpose(1, 2)).float()
        seen = scores.view(slots, kv_heads, -1, self._attended) + self._mask(cache.window)
        weights = seen.softmax(-1).to(values.dtype).flatten(0, 1)
        return torch.bmm(weights, values.flatten(0, 1)).view(q.shape)

    def _mask(self, window: int) -> Tensor:
        """Additive, float32 [B, 1, 1, S]; one for all layers that see as far."""
        if window not in self._masks:
            slot = torch.arange(self._attended, device=self._positions.device)
            age = self._positions.unsqueeze(-1) - slot
            hidden = (age < 0) | (age >= window) if window else age < 0
            mask = torch.zeros(age.shape, device=age.device).masked_fill_(hidden, MASKED)
            self._masks[window] = mask[:, None, None]
        return self._masks[window]
