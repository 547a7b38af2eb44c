"""A target and its drafter."""

from torch import Tensor, nn
from torch._subclasses import FakeTensor

from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.protocol import Drafter
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.images import ImageSupport


class Pair(nn.Module):
    """The modules of an artifact: `target.*`, `draft.*`, and `vision.*` where prompts may have
    images."""

    target: TapTarget
    draft: Drafter

    def __init__(
        self, target: TapTarget, draft: Drafter, pictures: ImageSupport | None = None
    ) -> None:
        """Raises PairingError where the drafter does not fit the target."""
        super().__init__()
        if not isinstance(target, TapTarget) or not isinstance(target, nn.Module):
            raise PairingError(f"{type(target).__name__} is not a TapTarget module")
        draft.check_target(target)
        check_draft_ids(draft, target)
        target.set_eagle_tap_layers(draft.tap_layers)
        self.target = target
        self.draft = draft
        self.vision = None if pictures is None else pictures.encoder
        self.picture_tokens = None if pictures is None else pictures.tokens
        self.sees_whole = pictures is not None and pictures.bidirectional
        if pictures is not None:
            assert isinstance(target, Gemma4Target)
            target.suppress_tokens(pictures.tokens.never)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights; what several modules share counts once."""
        holders = [module for module in self.modules() if not isinstance(module, KVCache)]
        held = [(*m.parameters(recurse=False), *m.buffers(recurse=False)) for m in holders]
        storages = [tensor.untyped_storage() for tensors in held for tensor in tensors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def reset_cache(self) -> None:
        """Forget all sequences."""
        self.target.reset_cache()
        self.draft.reset_cache()


class Method(nn.Module):
    """Base of all methods of an artifact.

    A method holds the pair's target and drafter under the same names as all others, `target.*` and
    `draft.*`, so that methods share weights and caches. Methods only compute: choosing tokens,
    accepting drafts and stopping belong to the runner.
    """

    target: TapTarget
    draft: Drafter

    def __init__(self, pair: Pair, splits_keys: bool = False) -> None:
        super().__init__()
        self.target = pair.target
        self.draft = pair.draft
        self.splits_keys = splits_keys

    def features(self, taps: Tensor) -> tuple[Tensor, ...]:
        """Returns the features that the drafter reads, [1, T, H], from taps [1, T, n_taps * Ht];
        nothing for a drafter that reads no taps."""
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
