"""Which attention a round uses: its verification, and its head."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from eagle_aot.artifact import DRAFT_DECODE, TARGET_VERIFY
from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.lowering.backend import XNNPACK
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.triton_kernels.sdpa_splitk import is_servable

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


def methods_splitting_keys(attention: str, draft: Eagle3Draft) -> tuple[str, ...]:
    """The methods that must read their caches with the operator for few rows, and nothing else.

    A head of a shape that it has no kernel for keeps the stock attention.
    """
    if attention != SPLITK:
        return ()
    keys, config = draft.kv_cache.k, draft.config
    row = keys.new_empty(1, 1, config.num_heads, config.head_dim)
    return (TARGET_VERIFY, DRAFT_DECODE) if is_servable(row, keys) else (TARGET_VERIFY,)


@contextmanager
def attending_by(attention: str, model: nn.Module) -> Iterator[None]:
    """Let the model's caches attend that way while tracing, where it has a kernel for them.

    What they did before is restored on every exit, exceptions included.
    """
    caches = [module for module in model.modules() if isinstance(module, KVCache)]
    before = [cache.splits_keys for cache in caches]
    try:
        for cache in caches:
            cache.splits_keys = attention == SPLITK
        yield
    finally:
        for cache, splits_keys in zip(caches, before, strict=True):
            cache.splits_keys = splits_keys
