"""A target that reads whole batches at once: any decoder that `load_target` loads.

The modules are the target's own; what differs is how rows see one another. The exported decoder
attends through caches of fixed size, one text at a time; here a batch of texts attends to
itself. B rows in a batch, T columns, H hidden, D head dimension.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets import TapTarget, get_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.cache_views import View
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.layer import ResidualLayer
from eagle_aot.targets.decoder.recurrent_cache import has_states
from eagle_aot.targets.decoder.tap_decoder import Context, TapDecoder
from eagle_aot.targets.decoder.weights import replace_linear
from eagle_aot.targets.int4 import Int4Linear

UNLIKE_ANY = (131, 251)
"""Rows and columns of a first batch: as many tokens as a real one has, and sizes that no dimension
of a model has, or the compiler would treat the two as the same size."""
LOGITS_AT_ONCE = 2**28  # a gigabyte in float32
SHORTEST = 16  # positions of the decoder's own caches, which nothing here uses


class CausalView:
    """Rows that see themselves and those before them, within the window if there is one."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.latest: tuple[Tensor, Tensor] | None = None

    def store(self, cache: KVCache, k: Tensor, v: Tensor) -> None:
        """Keep `k`, `v` [B, T, kv_heads, D]; the cache itself stays as it is."""
        self.latest = k, v

    def uses_operator(self, heads: int, dtype: torch.dtype, cache: KVCache) -> bool:
        """Never: nothing is stored here for an operator to read."""
        return False

    def attend(self, cache: KVCache, q: Tensor, scale: float) -> Tensor:
        """Attend with `q` [B, T, heads, D] to the stored keys; same shape and dtype."""
        assert self.latest is not None
        if not self.window or self.window >= q.shape[1]:
            return attend_grouped(q, *self.latest, scale)
        age = torch.arange(q.shape[1], device=q.device)
        age = age.unsqueeze(-1) - age
        return attend_grouped(q, *self.latest, scale, (age >= 0) & (age < self.window))


def attend_grouped(
    q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor | None = None
) -> Tensor:
    """Attend with `q` [B, T, heads, D] to `k`, `v` [B, S, kv_heads, D]; same shape and dtype.

    `seen`, bool [..., T, S], says which keys a row sees: by default those up to its own, for S = T.
    """
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2).transpose(1, 2) for x in (k, v))
    mixed = F.scaled_dot_product_attention(
        q.transpose(1, 2), k, v, seen, is_causal=seen is None, scale=scale
    )
    return mixed.transpose(1, 2)


def through_layer(
    layer: nn.Module, stream: Tensor, normed: Tensor, context: Context, next_norm: nn.Module
) -> tuple[Tensor, Tensor]:
    """Run one layer: return the streams [B, T, H] after it."""
    new_stream, new_normed = layer(stream, normed, context, next_norm)
    return new_stream, new_normed


def causal_view(cache: KVCache) -> CausalView:
    """Return the view of a layer that has this cache."""
    return CausalView(cache.window)


def pass_by(cache: KVCache, view: object) -> None:
    """Do nothing after a layer."""


Streams = tuple[Tensor, Tensor]
ViewOf = Callable[[KVCache], object]
"""How rows see the keys of the layer that has this cache."""
After = Callable[[KVCache, object], None]


class FrozenTarget:
    """A decoder with dense weights on a device."""

    def __init__(self, decoder: TapTarget, device: torch.device) -> None:
        """Change `decoder` in place. Raises UnsupportedError for one that is no `TapDecoder`."""
        if not isinstance(decoder, TapDecoder):
            raise UnsupportedError(f"{type(decoder).__name__}: heads are trained for decoders")
        if has_states(decoder):
            raise UnsupportedError("heads are not trained for targets with recurrent states")
        for name, module in list(decoder.named_modules()):
            if isinstance(module, Int4Linear):
                replace_linear(decoder, name, module.dense())
        self.decoder = decoder.to(device).requires_grad_(False)
        self.facts: TapTarget = decoder
        self.device = device
        self.dtype = decoder.embed_weight.dtype
        self._through_causal: Callable[..., Streams] = through_layer

    def compile(self) -> None:
        """Fuse what surrounds the products of a layer in `read`; one compilation serves all."""
        self._through_causal = torch.compile(through_layer, dynamic=True)
        self.read(torch.zeros(UNLIKE_ANY, dtype=torch.int64, device=self.device))

    @torch.no_grad()
    def read(self, tokens: Tensor, taps: Sequence[int] = (), after: After = pass_by) -> Streams:
        """`tokens` int64 [B, T] -> the stream after the final norm [B, T, H], taps [B, T, n * H].

        `taps` are boundaries, as `TapDecoder` counts them. `after` is called with every layer's
        cache and view when the layer is done.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        return self._run(tokens, positions, causal_view, taps, after, self._through_causal)

    @torch.no_grad()
    def step(self, tokens: Tensor, positions: Tensor, view_of: ViewOf) -> Tensor:
        """Return float32 logits [B, T, V] of `tokens` at `positions`, int64 [B, T] each.

        `view_of` decides which keys the rows attend to.
        """
        normed, _ = self._run(tokens, positions, view_of, (), pass_by, through_layer)
        return self.logits(normed)

    def _run(
        self,
        tokens: Tensor,
        positions: Tensor,
        view_of: ViewOf,
        taps: Sequence[int],
        after: After,
        through: Callable[..., Streams],
    ) -> Streams:
        decoder, layers = self.decoder, [cast(ResidualLayer, x) for x in self.decoder.layers]
        embeddings = {layer.kind: decoder.rotary_of(layer.kind) for layer in layers}
        rotary = {kind: embedding(positions) for kind, embedding in embeddings.items()}
        norms = [*(layer.input_layernorm for layer in layers), decoder.norm]
        stream = decoder.embed(tokens)
        tapped, normed = ([stream] if 0 in taps else []), norms[0](stream)
        for boundary, layer in enumerate(layers, start=1):
            view = view_of(layer.kv_cache)
            context = Context(cast(View, view), rotary[layer.kind])
            stream, normed = through(layer, stream, normed, context, norms[boundary])
            after(layer.kv_cache, view)
            if boundary in taps:
                tapped.append(stream)
        return normed, torch.cat(tapped, dim=-1) if tapped else stream[..., :0]

    def logits(self, normed: Tensor) -> Tensor:
        """Return float32 logits [B, T, V] of the stream after the final norm [B, T, H]."""
        return self.decoder.logits(normed)


def read_target(target_model: str, path: Path, device: torch.device) -> FrozenTarget:
    """Load the target at `path`, a directory or GGUF file: bfloat16 on a GPU, float32 on a CPU."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    loaded = get_target(target_model).load(Checkpoint(path), dtype, CacheSpec(SHORTEST, dtype))
    return FrozenTarget(loaded, device)
