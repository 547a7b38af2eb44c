"""Rows that a sequence takes over from another one, in all caches at once."""

from collections.abc import Iterable

from eagle_aot.targets.decoder.kv_cache import KVCache, PromptView
from eagle_aot.targets.step import PromptChunk
from eagle_aot.triton_kernels import copy_rows as operators


def copy_rows(caches: Iterable[KVCache], source: PromptChunk, to: PromptChunk) -> None:
    """Copy what the caches hold at the positions of `source` to the same ones of another sequence.

    Through one operator for each cache, if `to` is of a program for a GPU (`streams_keys`).

    Of a ring that is what lies in the positions' slots: of those that it has forgotten, later ones.
    """
    copy = operators.copy_rows if to.streams_keys else operators.copy_rows_reference
    places: dict[tuple[int, int], tuple[PromptView, PromptView]] = {}
    for cache in caches:
        kind = cache.slots, cache.window
        if kind not in places:
            places[kind] = PromptView(source, cache), PromptView(to, cache)
        here, there = places[kind]
        copy(cache.k, cache.v, here.own, there.own)
