"""Rows that a sequence takes over from another one, in all caches at once."""

from collections.abc import Iterable

from eagle_aot.targets.decoder.kv_cache import KVCache, PromptView
from eagle_aot.targets.step import PromptChunk
from eagle_aot.triton_kernels import copy_rows as operator


def copy_rows(caches: Iterable[KVCache], source: PromptChunk, to: PromptChunk) -> None:
    """Copy what the caches hold at the positions of `source` to the same ones of another sequence.

    Through one operator for each cache, if `to` is of a program for a GPU (`streams_keys`).

    Of a ring that is what lies in the positions' slots: of those that it has forgotten, later ones.
    """
    places: dict[tuple[int, int], tuple[PromptView, PromptView]] = {}
    for cache in caches:
        kind = cache.slots, cache.window
        if kind not in places:
            places[kind] = PromptView(source, cache), PromptView(to, cache)
        here, there = places[kind]
        if to.streams_keys:
            operator.copy_rows(cache.k, cache.v, here.own, there.own)
            continue
        for buffer in (cache.k, cache.v):
            buffer.index_copy_(1, there.own, buffer.index_select(1, here.own))
