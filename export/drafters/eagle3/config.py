"""The geometry and options of an EAGLE-3 draft head."""

from dataclasses import dataclass

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.decoder.rope import Rope

UNSCALED = Rope(theta=10000.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle3Wiring:
    """How a head's parts are connected, which its files may leave out or state wrongly."""

    norm_output: bool
    norm_before_residual: bool
    halves_swapped: bool = False  # [feature, embedding], which no trainer uses


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftConfig:
    """Geometry and options of a draft head, all read from its checkpoint.

    `tap_layers` are boundaries, ascending: boundary b is the target's residual stream after b
    decoder layers. Defaults are those of a head that names no options.
    """

    hidden_size: int
    target_hidden_size: int
    num_taps: int
    vocab_size: int
    draft_vocab_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int = 1  # the first reads embedding and feature, deeper ones the stream
    rms_norm_eps: float = 1e-6
    rope: Rope = UNSCALED
    hidden_act: str = "silu"
    norm_before_residual: bool = False  # residual stream starts at hidden_norm(feature)
    norm_before_fc: bool = False  # one norm on the concatenated taps
    fc_norm: bool = False  # one norm per tap, before they are concatenated
    norm_output: bool = False  # the recurrent feature is the one after the final norm
    final_norm: bool = True  # a norm before the output table
    qk_norm: bool = False  # a norm on every query and key, before they are rotated
    attention_bias: bool = False  # q, k and v
    output_bias: bool = False  # o
    mlp_bias: bool = False
    fc_bias: bool = False
    tap_layers: tuple[int, ...] = ()
    default_chain_len: int | None = None
    mask_token_id: int | None = None  # only for P-EAGLE

    @property
    def wiring(self) -> Eagle3Wiring:
        """The wiring that these options state."""
        return Eagle3Wiring(
            norm_output=self.norm_output, norm_before_residual=self.norm_before_residual
        )

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"draft head: {self.num_heads} query heads are not a multiple of "
                f"{self.num_kv_heads} key/value heads"
            )
        if self.norm_before_fc and self.fc_norm:
            raise CheckpointError("draft head: norm_before_fc and fc_norm exclude each other")
        if self.tap_layers and len(self.tap_layers) != self.num_taps:
            raise CheckpointError(
                f"draft head: {len(self.tap_layers)} tap layers {list(self.tap_layers)}, "
                f"but fc takes {self.num_taps}"
            )
