"""What a DFlash head is made of."""

from dataclasses import dataclass

from eagle_aot.targets.pre_norm.config import PreNormConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DFlashConfig:
    """Geometry and options, all read from a checkpoint.

    `layers` are the head's own, whose vocabulary is the target's. `tap_layers` are boundaries,
    ascending. A block is the bonus token and `block_size` - 1 masks, which are the target's token
    `mask_token_id`. With `causal_windows` the rows of a block see those before them alone in
    sliding layers; full layers see both ways. Embeddings are multiplied by `embedding_scale`,
    logits by `logit_scale`, and then capped by `softcap` where there is one.
    """

    layers: PreNormConfig
    target_hidden_size: int
    tap_layers: tuple[int, ...]
    draft_vocab_size: int
    block_size: int
    mask_token_id: int
    causal_windows: bool = True
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.layers.vocab_size

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.layers.hidden_size
