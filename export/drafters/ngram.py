"""Prompt lookup as a kind of drafter: the runner drafts from the text, without any module."""

import torch
from torch import Tensor, nn

from eagle_aot.artifact import NGRAM
from eagle_aot.export.drafters.description import Facts
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import MethodSpec
from eagle_aot.export.pair import Pair
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.decoder.kv_cache import CacheSpec


class NgramDraft(nn.Module):
    """The draft model of a target that is exported alone: no weights, no caches, no taps."""

    kind = NGRAM
    target_ids: Tensor
    tap_layers: tuple[int, ...] = ()
    hidden_size = 0
    default_chain_len: int | None = None

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.register_buffer("target_ids", torch.arange(vocab_size), persistent=False)

    def check_target(self, target: TapTarget) -> None:
        """Accept any target."""

    def fuse(self, taps: Tensor) -> Tensor:
        """Return taps [1, T, 0] unchanged."""
        return taps

    def reset_cache(self) -> None:
        """Do nothing."""


def without_checkpoint(
    spec: TargetSpec, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> tuple[NgramDraft, Facts]:
    return NgramDraft(target.vocab_size), {}


def methods(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> dict[str, MethodSpec]:
    return {}
