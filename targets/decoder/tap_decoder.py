"""The decoder loop that every family shares: embed, layers with taps, norm, logits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_aot.common.errors import SettingError
from eagle_aot.targets.decoder.cache_views import View, view_of
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.layer import ResidualLayer
from eagle_aot.targets.decoder.norms import RMSNorm
from eagle_aot.targets.decoder.positions import PositionGuard
from eagle_aot.targets.decoder.recurrent_cache import RecurrentCache
from eagle_aot.targets.decoder.recurrent_views import RecurrentView, recurrent_view_of
from eagle_aot.targets.decoder.rope import Rotary, RotaryEmbedding
from eagle_aot.targets.int4 import Int4Linear, PackedInt4Linear
from eagle_aot.targets.step import (
    MAX_ROWS,
    TAIL,
    PromptChunk,
    Rows,
    chain_step,
    one_row_of_rows,
    rows_of_sequences,
)


@dataclass(frozen=True, slots=True)
class Context:
    """What all layers of one kind share: the view of their caches and the rotary tables."""

    view: View
    rotary: Rotary


class TapDecoder(nn.Module):
    """A target whose hidden states can be tapped for a draft head.

    Boundary b is the residual stream after b decoder layers: 0 is the embedding's output, and the
    number of layers is the stream before the final norm. A family supplies `embed`, `layers`
    (`ResidualLayer`s), `norm`, `rotary_of` and `logits`. `lm_head` is None if the embedding table
    is also the output table.
    """

    layers: nn.ModuleList
    norm: RMSNorm
    embed_tokens: nn.Module
    lm_head: nn.Module | None

    def __init__(self, caches: CacheSpec, ring_window: int = 0) -> None:
        super().__init__()
        self.max_seq_len, self.sequences = caches.max_seq_len, caches.sequences
        self.tap_layers: tuple[int, ...] = ()
        self.positions = PositionGuard(caches.max_seq_len, ring_window, caches.chunk)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed token ids int64 [1, T] as the residual stream [1, T, H]."""
        raise NotImplementedError

    def rotary_of(self, kind: str) -> RotaryEmbedding:
        """Return the rotary embedding of the layers of a kind."""
        raise NotImplementedError

    def logits(self, normed: Tensor) -> Tensor:
        """Turn the stream after the final norm [1, T, H] into float32 logits [1, T, V]."""
        raise NotImplementedError

    def output_product(self, normed: Tensor) -> Tensor:
        """Multiply the stream after the final norm [1, T, H] by the output table: [1, T, V]."""
        return F.linear(normed, self.embed_weight) if self.lm_head is None else self.lm_head(normed)

    @property
    def embed_weight(self) -> Tensor:
        """The embedding table [V, H], unscaled."""
        weight = self.embed_tokens.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def lm_head_weight(self) -> Tensor:
        """The output table [V, H]; a quantised one is dequantised."""
        if self.lm_head is None:
            return self.embed_weight
        head = self.lm_head
        if isinstance(head, Int4Linear | PackedInt4Linear):
            head = head.dense()
        assert isinstance(head, nn.Linear)
        return head.weight

    def set_eagle_tap_layers(self, layers: Sequence[int]) -> None:
        """Set the boundaries to tap. Raises SettingError unless ascending within [0, L]."""
        check_tap_layers(layers, len(self.layers))
        self.tap_layers = tuple(layers)

    def forward_logits_taps(
        self, tokens: Tensor, input_pos: Tensor, last_logits_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Run consecutive tokens of the first sequence, as `run` does, and check their positions.

        tokens int64 [1, T], input_pos int64 [T]. Raises SettingError as `PositionGuard` does.
        """
        self.positions.advance(tokens, input_pos)
        few = input_pos.shape[0] <= (TAIL if self.positions.has_states else MAX_ROWS)
        first = torch.zeros(1, dtype=torch.int64, device=input_pos.device)
        rows = chain_step(input_pos) if few else PromptChunk(input_pos, first)
        return self.run(tokens, rows, last_logits_only)

    def run(
        self, tokens: Tensor, rows: Rows, last_logits_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Run one forward of `rows` with tokens int64 [B, T] through the caches.

        Returns float32 logits [B, T, V] (or [B, 1, V]) and the tapped streams concatenated, lowest
        boundary first, [B, T, num_taps * H]. Inside, the rows of all sequences follow one another,
        [1, B * T, H].
        """
        stream = self.embed(one_row_of_rows(tokens))
        if isinstance(rows, PromptChunk) and rows.embeds is not None:
            stream = rows.embeds.merge(stream)
        contexts = self._contexts(rows)
        taps = [stream] if 0 in self.tap_layers else []
        norms = [*(layer.get_submodule("input_layernorm") for layer in self.layers), self.norm]
        normed = norms[0](stream)
        for boundary, layer in enumerate(self._layers(), start=1):
            stream, normed = layer(stream, normed, contexts[layer.kind], norms[boundary])
            if boundary in self.tap_layers:
                taps.append(stream)
        last = normed[:, -1:] if last_logits_only else normed
        joined = torch.cat(taps, dim=-1) if taps else stream[..., :0]
        if last_logits_only:
            return self.logits(last), joined
        return rows_of_sequences(self.logits(last), tokens), rows_of_sequences(joined, tokens)

    def _contexts(self, rows: Rows) -> dict[str, Context | RecurrentView]:
        """Return what layers of each kind share: attention's a context, those with a recurrent
        state a view. Kinds with the same rotary embedding share tables."""
        caches = {layer.kind: layer.cache for layer in self._layers()}
        attended = {k: cache for k, cache in caches.items() if isinstance(cache, KVCache)}
        recurrent = {k: cache for k, cache in caches.items() if isinstance(cache, RecurrentCache)}
        embeddings = {kind: self.rotary_of(kind) for kind in attended}
        tables = {id(e): e(rows.row_positions) for e in embeddings.values()}
        return {
            **{
                kind: Context(view_of(rows, cache), tables[id(embeddings[kind])])
                for kind, cache in attended.items()
            },
            **{kind: recurrent_view_of(rows, cache) for kind, cache in recurrent.items()},
        }

    def _layers(self) -> Iterator[ResidualLayer]:
        for layer in self.layers:
            assert isinstance(layer, ResidualLayer)
            yield layer

    def reset_cache(self) -> None:
        """Zero all caches and start over at position 0."""
        self.positions.reset()
        for module in self.modules():
            if isinstance(module, KVCache | RecurrentCache):
                module.reset()


def check_tap_layers(layers: Sequence[int], num_layers: int) -> None:
    """Raise SettingError unless `layers` are ints, unique, ascending and in [0, num_layers]."""
    are_ints = all(isinstance(b, int) and not isinstance(b, bool) for b in layers)
    if not are_ints or list(layers) != sorted(set(layers)):
        raise SettingError(f"tap layers must be ascending, distinct ints: got {list(layers)}")
    if layers and not 0 <= layers[0] <= layers[-1] <= num_layers:
        raise SettingError(f"tap layers {list(layers)} must lie in [0, {num_layers}]")
