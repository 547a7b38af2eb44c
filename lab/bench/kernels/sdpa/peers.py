"""Other implementations of the same attention, as the user of each would call it."""

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from eagle_aot.lab.bench.kernels.sdpa.layers import Cache, Queries
from eagle_aot.triton_kernels.sdpa_splitk import visible_slots

Attention = Callable[[Cache], Tensor]
"""Queries bound: a cache in, [B, rows, heads, D] or [B, heads, rows, D] out."""


class NotServed(Exception):
    """A peer does not have this kind of layer, or is not here."""


def stock_whole(queries: Queries) -> Attention:
    """PyTorch's SDPA with a boolean mask over the whole buffer, as a compiled program needs it."""
    mask = _mask(queries)
    return lambda kv: _stock(queries, kv.k, kv.v, mask(kv.k))


def stock_slice(queries: Queries) -> Attention:
    """PyTorch's SDPA over a slice of what is seen: eager only, a shape is the length."""
    n, mask = queries.seen, seen_by_row(queries)
    return lambda kv: _stock(queries, kv.k[:, :, :n], kv.v[:, :, :n], mask)


def flex(queries: Queries) -> Attention:
    """flex_attention, compiled, with a block mask made beforehand for this very position: over the
    whole buffer, of a window over what is seen of it."""
    compiled = _compiled_flex()
    q, masks = queries.q.transpose(1, 2), _block_masks(queries)
    n = queries.seen if queries.layer.window else None
    return lambda kv: compiled(
        *(q, kv.k[:, :, :n].transpose(0, 1), kv.v[:, :, :n].transpose(0, 1)),
        block_mask=masks(kv.k[:, :, :n]),
        scale=queries.layer.scale,
        enable_gqa=True,
    )


def flashinfer(queries: Queries) -> Attention:
    """FlashInfer's kernel for one sequence, over a slice of what is seen.

    Of its kinds the one that splits keys among programs, which those made for Hopper do not.
    """
    if find_spec("flashinfer") is None:
        raise NotServed("not installed")
    if len(queries.q) > 1:
        raise NotServed("not tried on several sequences")
    library, n, layer = import_module("flashinfer"), queries.seen, queries.layer
    attention = partial(
        library.single_prefill_with_kv_cache,
        queries.q[0],
        causal=True,
        kv_layout="HND",
        sm_scale=layer.scale,
        window_left=layer.window - 1,  # -1: none
        backend="fa2",
    )
    return lambda kv: attention(kv.k[:, 0, :n], kv.v[:, 0, :n])


PEERS: dict[str, Callable[[Queries], Attention]] = {
    "SDPA, whole buffer": stock_whole,
    "SDPA, slice": stock_slice,
    "flex": flex,
    "FlashInfer": flashinfer,
}


def _stock(queries: Queries, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, keys, values = queries.q.transpose(1, 2), k.transpose(0, 1), v.transpose(0, 1)
    scale = queries.layer.scale
    return F.scaled_dot_product_attention(q, keys, values, mask, scale=scale, enable_gqa=True)


def seen_by_row(queries: Queries) -> Tensor:
    """Where all keys that are seen lie in order: which of them each row sees, bool [rows, seen]."""
    numbers = partial(torch.arange, device=queries.q.device)
    return _sees(queries)(numbers(queries.rows)[:, None], numbers(queries.seen))


def _sees(queries: Queries) -> Callable[[Tensor, Tensor], Tensor]:
    """Whether a row sees a key, by their numbers, where the keys lie in order."""
    first, window = queries.seen - queries.rows, queries.layer.window or queries.seen

    def sees(row: Tensor, key: Tensor) -> Tensor:
        behind = first + row - key
        return (behind >= 0) & (behind < window)

    return sees


def _mask(queries: Queries) -> Callable[[Tensor], Tensor]:
    """Made once, outside the timing: which slots a row sees, bool [rows, slots]."""
    layer = queries.layer

    @cache
    def of_slots(slots: int) -> Tensor:
        mask = torch.zeros(queries.rows, slots, dtype=torch.bool, device="cuda")
        for row, (position, tail) in enumerate(
            zip(queries.positions[0], queries.tail[0], strict=True)
        ):
            mask[row, visible_slots(int(position), tail, layer.window, layer.ring)] = True
        return mask

    return lambda k: of_slots(k.shape[2])


def _block_masks(queries: Queries) -> Callable[[Tensor], BlockMask]:
    sees = _sees(queries)

    def visible(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return sees(row, key)

    @cache
    def of_slots(slots: int) -> BlockMask:
        return create_block_mask(visible, None, None, queries.rows, slots, device="cuda")

    return lambda k: of_slots(k.shape[2])


@cache
def _compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=False)
