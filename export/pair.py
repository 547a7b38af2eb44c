"""A target and what drafts for it."""

from torch import Tensor, nn
from torch._subclasses import FakeTensor

from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.protocol import Drafter
from eagle_aot.targets import TapTarget
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.pictures import Pictures


class Pair(nn.Module):
    """Modules that an artifact is made of; their tensors are called `target.*` and `draft.*`, and
    `vision.*` where the target is to read `pictures`."""

    def __init__(self, target: TapTarget, draft: Drafter, pictures: Pictures | None = None) -> None:
        """Raises PairingError when the drafter cannot read this target."""
        super().__init__()
        if not isinstance(target, TapTarget) or not isinstance(target, nn.Module):
            raise PairingError(f"{type(target).__name__} is not a TapTarget module")
        draft.check_target(target)
        check_draft_ids(draft, target)
        target.set_eagle_tap_layers(draft.tap_layers)
        self.target: TapTarget = target
        self.draft: Drafter = draft
        self.vision = None if pictures is None else pictures.encoder
        self.picture_tokens = None if pictures is None else pictures.tokens
        self.sees_whole = pictures is not None and pictures.sees_whole
        if pictures is not None:
            assert isinstance(target, Gemma4Target)
            target.suppress(pictures.tokens.never)

    def reset_cache(self) -> None:
        """Forget all sequences."""
        self.target.reset_cache()
        self.draft.reset_cache()


class Method(nn.Module):
    """Base: a method of a pair's artifact, over the same children as all others.

    So weights and caches keep one name (`target.*`, `draft.*`) in every method and can be shared
    between them. Methods only compute: choosing tokens, accepting drafts, stopping and budgets
    belong to the runner.
    """

    def __init__(self, pair: Pair, splits_keys: bool = False) -> None:
        super().__init__()
        self.target: TapTarget = pair.target
        self.draft: Drafter = pair.draft
        self.splits_keys = splits_keys

    def features(self, taps: Tensor) -> tuple[Tensor, ...]:
        """What the drafter reads of rows: taps [1, T, n_taps * Ht] -> [1, T, H], if anything."""
        return (self.draft.fuse(taps),) if self.draft.tap_layers else ()


def check_draft_ids(draft: Drafter, target: TapTarget) -> None:
    """Raise PairingError where the drafter proposes ids that the target does not have."""
    low, high = _id_range(draft.target_ids)
    if low < 0 or high >= target.vocab_size:
        raise PairingError(
            f"the head's d2t reaches ids {low}..{high}, the target has {target.vocab_size}: "
            "not a matched pair"
        )


def _id_range(ids: Tensor) -> tuple[int, int]:
    if isinstance(ids, FakeTensor):
        return 0, 0  # a graph check holds no values
    return int(ids.min()), int(ids.max())
