"""Which attention a round's verification uses."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from eagle_aot.errors import SettingError
from eagle_aot.export.lowering.backend import XNNPACK
from eagle_aot.targets.decoder.kv_cache import KVCache

SPLITK, STOCK = "splitk", "stock"


def choose_attention(asked: str | None, backend: str) -> str:
    """`asked`, by default the operator for few rows where the backend has it.

    Raises SettingError where it is asked for and the backend has not, and for an unknown one.
    """
    if asked not in (None, SPLITK, STOCK):
        raise SettingError(f"--attention {asked}: must be {SPLITK} or {STOCK}")
    if backend == XNNPACK and asked == SPLITK:
        raise SettingError("--attention splitk: its kernels run on CUDA; leave it out for xnnpack")
    return asked or (STOCK if backend == XNNPACK else SPLITK)


@contextmanager
def attending_by(attention: str, target: nn.Module) -> Iterator[None]:
    """Let the target's caches attend that way while tracing.

    What they did before is restored on every exit, exceptions included.
    """
    caches = [module for module in target.modules() if isinstance(module, KVCache)]
    before = [cache.splits_keys for cache in caches]
    try:
        for cache in caches:
            cache.splits_keys = attention == SPLITK
        yield
    finally:
        for cache, splits_keys in zip(caches, before, strict=True):
            cache.splits_keys = splits_keys
