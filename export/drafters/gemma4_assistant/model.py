"""The assistant: a few Gemma 4 layers that read the target's keys and values, and store none.

A row holds the embedding of a token and a state of the target's width, and stands behind the newest
key of its sequence: token p + 1 and the state of position p, whose keys 0 .. p it sees. The first
row of a round has the bonus token and the target's state after its final norm; the next ones have a
draft and the state that the assistant made of the row before, and stand at the same place: what has
been drafted is in no cache. Math as in transformers' `modeling_gemma4_assistant.py`. Shapes: Bt the
target's width, H the assistant's, V the vocabulary.
"""

import copy

import torch
from torch import Tensor, nn

from eagle_aot.artifact import GEMMA4_ASSISTANT
from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.gemma4_assistant.centroids import Centroids
from eagle_aot.export.drafters.gemma4_assistant.config import AssistantConfig, AssistantWiring
from eagle_aot.export.drafters.gemma4_assistant.layer import AssistantLayer, ReadContext, linear
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.cache_views import StepView
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.layer import ResidualLayer
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.rope import RotaryEmbedding
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.gemma4.config import FULL, SLIDING
from eagle_aot.targets.step import Step, one_row_of_rows, rows_of_sequences


class Gemma4Assistant(nn.Module):
    """An assistant beside its target. `target_norm` is the target's final norm, weight and all."""

    kind = GEMMA4_ASSISTANT
    target_ids: Tensor

    def __init__(
        self, config: AssistantConfig, target_layers: int, dtype: torch.dtype, caches: CacheSpec
    ) -> None:
        """Of a target of so many layers; `caches` are the target's."""
        super().__init__()
        self.config, self.target_layers = config, target_layers
        text, width = config.text, config.backbone_hidden_size
        hidden, eps = text.hidden_size, text.rms_norm_eps
        self.pre_projection = linear(2 * width, hidden, dtype)
        self.layers = nn.ModuleList(
            AssistantLayer(text, layer, dtype, caches) for layer in range(text.num_hidden_layers)
        )
        self.norm = RMSNorm(hidden, eps, dtype)
        self.post_projection = linear(hidden, width, dtype)
        self.lm_head = linear(hidden, text.vocab_size, dtype)
        clusters = config.centroids
        masked = clusters and Centroids(hidden, text.vocab_size, clusters, dtype)
        self.register_module("masked_embedding", masked)
        self.target_norm = RMSNorm(width, eps, dtype)
        ropes = {SLIDING: text.sliding_rope, FULL: text.full_rope}
        dims = {text.layer_types[i]: text.dims(i)[0] for i in range(text.num_hidden_layers)}
        self.rotary = nn.ModuleDict({kind: ropes[kind].embedding(dims[kind]) for kind in dims})
        self.register_buffer("target_ids", torch.arange(text.vocab_size), persistent=False)

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """The stream behind the target's last layer, which `fuse` norms as the target does."""
        return (self.target_layers,)

    @property
    def hidden_size(self) -> int:
        """Bt: states go in and come out as wide as the target."""
        return self.config.backbone_hidden_size

    @property
    def default_chain_len(self) -> int | None:
        """Drafts a round that its checkpoint proposes."""
        return self.config.default_chain_len

    def check_target(self, target: TapTarget) -> None:
        """Raise PairingError unless widths, vocabulary and all caches that it reads are there."""
        if not isinstance(target, Gemma4Target):
            raise PairingError(
                "the assistant reads the caches of a Gemma 4 target, and of no other"
            )
        config = self.config
        for what, own, found in (
            ("hidden size", config.backbone_hidden_size, target.hidden_size),
            ("vocabulary", config.text.vocab_size, target.vocab_size),
            ("number of layers", self.target_layers, target.num_hidden_layers),
        ):
            if own != found:
                raise PairingError(
                    f"the target's {what} is {found}, the assistant was made for {own}"
                )
        for kind, layer in source_layers(self, target, config.wiring).items():
            self._check_cache(target, kind, layer)

    def _check_cache(self, target: Gemma4Target, kind: str, layer: int) -> None:
        text = self.config.text
        own = text.dims(text.layer_types.index(kind))
        if own != (found := target.config.dims(layer)):
            raise PairingError(
                f"layer {layer} of the target has {found[1]} key/value heads of {found[0]}, "
                f"the assistant's {kind} layers read {own[1]} of {own[0]}"
            )
        if kind == SLIDING and text.sliding_window != target.config.sliding_window:
            raise PairingError(
                f"the target's window is {target.config.sliding_window}, the assistant's "
                f"{text.sliding_window}: it was made for another target"
            )

    def fuse(self, taps: Tensor) -> Tensor:
        """Streams behind the last layer [1, T, Bt] -> what the target's `lm_head` reads of them."""
        return self.target_norm(taps)

    def reset_cache(self) -> None:
        """There is none."""

    def run(
        self, target: Gemma4Target, tokens: Tensor, states: Tensor, step: Step
    ) -> tuple[Tensor, Tensor]:
        """One forward: tokens int64 [B, T] with states [B, T, Bt], behind the keys that `step`
        names: its positions and tails are those of each row's newest key.

        Returns logits float32 [B, T, V] and the states [B, T, Bt] that go with the next tokens.
        """
        embedding = target.embed(one_row_of_rows(tokens))
        stream = torch.cat((embedding, one_row_of_rows(states)), dim=-1)
        features = self._features(self.pre_projection(stream), self._contexts(target, step))
        logits = cast(self.lm_head(features), torch.float32)
        if isinstance(self.masked_embedding, Centroids):
            logits = self.masked_embedding(features, logits)
        following = self.post_projection(features)
        return rows_of_sequences(logits, tokens), rows_of_sequences(following, tokens)

    def _features(self, stream: Tensor, contexts: dict[str, ReadContext]) -> Tensor:
        """The stream [1, T, H] through all layers and the final norm."""
        norms = [*(layer.get_submodule("input_layernorm") for layer in self.layers), self.norm]
        normed = norms[0](stream)
        for layer, norm in zip(self.layers, norms[1:], strict=True):
            assert isinstance(layer, AssistantLayer)
            stream, normed = layer(stream, normed, contexts[layer.kind], norm)
        return normed

    def _contexts(self, target: Gemma4Target, step: Step) -> dict[str, ReadContext]:
        wiring = self.config.wiring
        positions = step.row_positions + wiring.position_offset
        contexts = {}
        for kind, cache in source_caches(self, target, wiring).items():
            embedding = self.rotary[kind]
            assert isinstance(embedding, RotaryEmbedding)
            seen = with_window(cache, wiring.window_offset)
            contexts[kind] = ReadContext(StepView(step, seen), embedding(positions), seen)
        return contexts


def source_caches(
    draft: Gemma4Assistant, target: Gemma4Target, wiring: AssistantWiring
) -> dict[str, KVCache]:
    """The target's caches that are read, by the kind of the assistant's layers."""
    layers = [layer for layer in target.layers if isinstance(layer, ResidualLayer)]
    found = source_layers(draft, target, wiring)
    return {kind: layers[layer].kv_cache for kind, layer in found.items()}


def source_layers(
    draft: Gemma4Assistant, target: Gemma4Target, wiring: AssistantWiring
) -> dict[str, int]:
    """Which layers of the target are read, counted from 0, by kind.

    Raises PairingError where the target has none of a kind, or `wiring` names what is none.
    """
    types = target.config.layer_types
    named = range(len(types)) if wiring.kv_layers is None else wiring.kv_layers
    last = {types[layer]: layer for layer in named if layer < len(types)}
    for kind in dict.fromkeys(draft.config.text.layer_types):
        if kind not in last:
            raise PairingError(f"the assistant reads a {kind} layer, and the target has none there")
    return {kind: last[kind] for kind in dict.fromkeys(draft.config.text.layer_types)}


def with_window(cache: KVCache, offset: int) -> KVCache:
    """The same cache, of which rows see so many keys more."""
    if not cache.window or not offset:
        return cache
    seen = copy.copy(cache)
    seen.window = cache.window + offset
    return seen
