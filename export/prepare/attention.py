"""Which attention a round uses: its verification, and its head."""

from eagle_aot.artifact import DRAFT_DECODE, TARGET_VERIFY
from eagle_aot.common.errors import SettingError
from eagle_aot.export.lowering.backend import XNNPACK
from eagle_aot.export.pair import Pair
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


def methods_splitting_keys(attention: str, pair: Pair) -> frozenset[str]:
    """The methods that must read their caches with the operator for few rows, and nothing else.

    A head of a shape that it has no kernel for keeps the stock attention.
    """
    if attention != SPLITK:
        return frozenset()
    cache, config = pair.draft.kv_cache, pair.draft.config
    serves_draft = is_servable(config.num_heads, cache.k)
    return frozenset((TARGET_VERIFY, DRAFT_DECODE) if serves_draft else (TARGET_VERIFY,))
