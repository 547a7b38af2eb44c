"""A target and its draft head."""

from torch import Tensor, nn
from torch._subclasses import FakeTensor

from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.targets import TapTarget


class Pair(nn.Module):
    """Modules that an artifact is made of; their tensors are called `target.*` and `draft.*`."""

    def __init__(self, target: TapTarget, draft: Eagle3Draft) -> None:
        """Raises PairingError when the head cannot read this target."""
        super().__init__()
        check_pair(target, draft)
        target.set_eagle_tap_layers(draft.config.tap_layers)
        self.target = target
        self.draft = draft

    def reset_cache(self) -> None:
        """Forget all sequences."""
        self.target.reset_cache()
        self.draft.reset_cache()


def check_pair(target: TapTarget, draft: Eagle3Draft) -> None:
    """Raise PairingError unless the head's widths and vocabulary are the target's."""
    if not isinstance(target, TapTarget) or not isinstance(target, nn.Module):
        raise PairingError(f"{type(target).__name__} is not a TapTarget module")
    config = draft.config
    if config.target_hidden_size != target.hidden_size:
        raise PairingError(
            f"the head reads taps of width {config.target_hidden_size}, "
            f"the target's hidden size is {target.hidden_size}"
        )
    if config.vocab_size != target.vocab_size:
        raise PairingError(
            f"the head embeds {config.vocab_size} tokens, the target has {target.vocab_size}"
        )
    if not draft.has_embedding:
        raise PairingError("the head has no embedding: load it with load_draft(path, target=...)")
    if not config.tap_layers:
        raise PairingError(
            "the head names no tap layers: load it with load_draft(path, target=...)"
        )
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
