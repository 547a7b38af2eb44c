"""A target and its drafter."""

from torch import Tensor, nn
from torch._subclasses import FakeTensor

from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.protocol import DraftModel
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.decoder.recurrent_cache import RecurrentCache, has_states
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.images import ImageSupport


class Pair(nn.Module):
    """The modules of an artifact: `target.*`, `draft.*`, `vision.*` if prompts may contain images,
    and `table_screen.*` if the output table has an INT8 copy."""

    target: TapTarget
    draft: DraftModel

    def __init__(
        self, target: TapTarget, draft: DraftModel, images: ImageSupport | None = None
    ) -> None:
        """Raises PairingError if the drafter does not fit the target."""
        super().__init__()
        if not isinstance(target, TapTarget) or not isinstance(target, nn.Module):
            raise PairingError(f"{type(target).__name__} is not a TapTarget module")
        draft.check_target(target)
        check_draft_ids(draft, target)
        target.set_eagle_tap_layers(draft.tap_layers)
        self.target = target
        self.draft = draft
        self.vision = None if images is None else images.encoder
        self.image_tokens = None if images is None else images.tokens
        self.sees_whole = images is not None and images.bidirectional
        self.table_screen: nn.Module | None = None
        if images is not None:
            assert isinstance(target, Gemma4Target)
            target.suppress_tokens(images.tokens.never)
        self.requires_grad_(False)  # torch cannot lower a branch of a graph that has gradients

    @property
    def has_states(self) -> bool:
        """Whether layers of the target have recurrent states."""
        return has_states(self)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return weight_bytes(self)

    def reset_cache(self) -> None:
        """Forget all sequences."""
        self.target.reset_cache()
        self.draft.reset_cache()


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's weights, without caches; a tensor that several modules share
    counts once."""
    caches = KVCache | RecurrentCache
    owners = [module for module in model.modules() if not isinstance(module, caches)]
    weights = [(*m.parameters(recurse=False), *m.buffers(recurse=False)) for m in owners]
    storages = [tensor.untyped_storage() for tensors in weights for tensor in tensors]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


class Method(nn.Module):
    """Base of all methods of an artifact.

    Every method has the pair's target and drafter as `target.*` and `draft.*`, so that methods
    share weights and caches by name. Methods only compute: choosing tokens, accepting drafts and
    stopping are the runner's tasks.
    """

    target: TapTarget
    draft: DraftModel

    def __init__(self, pair: Pair, use_splitk: bool = False) -> None:
        super().__init__()
        self.target = pair.target
        self.draft = pair.draft
        self.use_splitk = use_splitk

    def features(self, taps: Tensor) -> tuple[Tensor, ...]:
        """Return the features that the drafter reads, [1, T, H], from taps [1, T, n_taps * Ht];
        nothing for a drafter that reads no taps."""
        return (self.draft.fuse(taps),) if self.draft.tap_layers else ()


def check_draft_ids(draft: DraftModel, target: TapTarget) -> None:
    """Raise PairingError if the drafter proposes ids that the target does not have."""
    ids = draft.target_ids
    if isinstance(ids, FakeTensor):
        return  # a graph check has no values
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= target.vocab_size:
        raise PairingError(
            f"the head's d2t reaches ids {low}..{high}, the target has {target.vocab_size}: "
            "not a matched pair"
        )
