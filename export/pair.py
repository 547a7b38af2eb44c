"""A target and its draft head as the methods of one artifact."""

from torch import Tensor, nn
from torch._subclasses import FakeTensor

from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.greedy import greedy


class Eagle3Speculator(nn.Module):
    """Shifted speculative decoding: draft slot j pairs token j + 1 with the feature of position j.

    The methods only compute. Accepting drafts, stopping and budgets belong to the caller.
    `prefill` and `target_verify` share the target's caches; `draft_decode` has its own.
    """

    def __init__(self, target: TapTarget, draft: Eagle3Draft) -> None:
        """Raises PairingError when the head cannot read this target."""
        super().__init__()
        check_pair(target, draft)
        target.set_eagle_tap_layers(draft.config.tap_layers)
        self.target = target
        self.draft = draft

    def prefill(self, tokens: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor]:
        """A prompt chunk: tokens int64 [1, T], input_pos int64 [T].

        Returns the greedy next token int64 [1, 1] and the fused feature of every position
        [1, T, H].
        """
        logits, taps = self.target.forward_logits_taps(tokens, input_pos, last_logits_only=True)
        return greedy(logits), self.draft.fuse(taps)

    def target_verify(self, tokens: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor]:
        """The bonus token and its drafts: tokens int64 [1, T], input_pos int64 [T].

        Returns the greedy token after each of them int64 [1, T] (row i checks draft i, the last
        row is the next bonus) and their fused features [1, T, H]. T = 1 is plain decoding.
        """
        logits, taps = self.target.forward_logits_taps(tokens, input_pos)
        return greedy(logits), self.draft.fuse(taps)

    def draft_decode(
        self, tokens: Tensor, feature: Tensor, input_pos: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draft slots: tokens int64 [1, T] (each one after its feature), feature [1, T, H].

        Features are fused for committed slots and recurrent for proposed ones. Returns the
        proposed target ids int64 [1, T], of which only the last continues the text, and the
        recurrent features [1, T, H].
        """
        embedding = self.draft.embed(tokens)
        logits, recurrent = self.draft.forward_cached(embedding, feature, input_pos)
        return self.draft.draft_to_target(greedy(logits)), recurrent

    def decode(self, token: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor]:
        """Plain decoding of one token int64 [1, 1], eager only: same outputs as `prefill`."""
        return self.prefill(token, input_pos)

    def reset_cache(self) -> None:
        """Start a new sequence."""
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
