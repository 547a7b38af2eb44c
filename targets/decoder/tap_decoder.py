"""The decoder loop that every family shares: embed, layers with taps, norm, logits."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eagle_aot.artifact import VERIFY_SLACK
from eagle_aot.common.errors import SettingError
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.decoder.norms import RMSNorm
from eagle_aot.targets.decoder.positions import PositionGuard


class TapDecoder(nn.Module):
    """A target whose hidden states can be tapped for a draft head.

    Boundary b is the residual stream after b decoder layers: 0 is the embedding's output, the
    number of layers is the stream before the final norm. A family supplies `embed`, `layers`
    (`ResidualLayer`s), `norm`, `context` and `logits`.
    """

    layers: nn.ModuleList
    norm: RMSNorm

    def __init__(self, max_seq_len: int, ring_window: int = 0) -> None:
        super().__init__()
        self.max_seq_len = max_seq_len
        self.tap_layers: tuple[int, ...] = ()
        self.positions = PositionGuard(max_seq_len + VERIFY_SLACK, ring_window)

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids int64 [1, T] -> residual stream [1, T, H]."""
        raise NotImplementedError

    def context(self, input_pos: Tensor) -> object:
        """What all layers share for these positions: rotary angles, and what they may see."""
        raise NotImplementedError

    def logits(self, normed: Tensor) -> Tensor:
        """Residual stream after the final norm [1, T, H] -> float32 logits [1, T, V]."""
        raise NotImplementedError

    def set_eagle_tap_layers(self, layers: Sequence[int]) -> None:
        """Choose the boundaries to tap. Raises SettingError unless ascending within [0, L]."""
        check_tap_layers(layers, len(self.layers))
        self.tap_layers = tuple(layers)

    def forward_logits_taps(
        self, tokens: Tensor, input_pos: Tensor, last_logits_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Run one chunk through the cache.

        tokens int64 [1, T], input_pos int64 [T]. Returns float32 logits [1, T, V] (or [1, 1, V])
        and the tapped streams side by side, lowest boundary first, [1, T, num_taps * H].
        """
        self.positions.advance(tokens, input_pos)
        stream = self.embed(tokens)
        context = self.context(input_pos)
        taps = [stream] if 0 in self.tap_layers else []
        norms = [*(layer.get_submodule("input_layernorm") for layer in self.layers), self.norm]
        normed = norms[0](stream)
        for boundary, layer in enumerate(self.layers, start=1):
            stream, normed = layer(stream, normed, context, norms[boundary])
            if boundary in self.tap_layers:
                taps.append(stream)
        last = normed[:, -1:] if last_logits_only else normed
        joined = torch.cat(taps, dim=-1) if taps else stream[..., :0]
        return self.logits(last), joined

    def reset_cache(self) -> None:
        """Start a new sequence."""
        self.positions.reset()
        for module in self.modules():
            if isinstance(module, KVCache):
                module.reset()


def check_tap_layers(layers: Sequence[int], num_layers: int) -> None:
    """Raise SettingError unless `layers` are ints, unique, ascending and in [0, num_layers]."""
    plain = all(isinstance(b, int) and not isinstance(b, bool) for b in layers)
    if not plain or list(layers) != sorted(set(layers)):
        raise SettingError(f"tap layers must be ascending, distinct ints: got {list(layers)}")
    if layers and not 0 <= layers[0] <= layers[-1] <= num_layers:
        raise SettingError(f"tap layers {list(layers)} must lie in [0, {num_layers}]")
