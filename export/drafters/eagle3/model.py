"""The EAGLE-3 draft head: decoder layers over (next token's embedding, feature) pairs.

Slot j holds the embedding of token j + 1 and the feature of position j, and predicts token j + 2.
A feature is either *fused* (`fc` of the target's tapped hidden states) or *recurrent* (the head's
own output for the slot before). Math as in SafeAILab/EAGLE `cnets.py`, on which vLLM, SGLang and
speculators agree. Shapes: B batch, T slots, H draft hidden, V target vocabulary, Vd draft
vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import PairingError, SettingError
from eagle_aot.export.drafters.eagle3.config import DraftConfig, Eagle3Wiring
from eagle_aot.export.drafters.eagle3.layer import DeepDraftLayer, DraftBlock, DraftLayer
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.cache_views import PromptView, StepView
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.positions import PositionGuard
from eagle_aot.targets.step import PromptChunk, Step, chain_step, one_row_of_rows, rows_of_sequences

KIND = "eagle3"
"""As an artifact names what drafts for it."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A layer's attention: q [B, T, heads, D], k and v [B, T, kv_heads, D] -> as q, unscaled."""


class Eagle3Draft(nn.Module):
    """An EAGLE-3 head with its own KV caches, one per layer.

    `target_ids` int64 [Vd] is the target id of every draft id (absolute, not offsets).
    `embed_tokens` and `lm_head` may be filled from the target by the loader; until then a head
    whose checkpoint has no embedding refuses to embed (`has_embedding`).
    """

    kind = KIND
    target_ids: Tensor

    def __init__(self, config: DraftConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.has_embedding = True
        hidden, eps = config.hidden_size, config.rms_norm_eps
        taps_width = config.num_taps * config.target_hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden, dtype=dtype)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(taps_width, eps, dtype)
        if config.fc_norm:
            norms = (RMSNorm(config.target_hidden_size, eps, dtype) for _ in range(config.num_taps))
            self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(taps_width, hidden, bias=config.fc_bias, dtype=dtype)
        deeper = (DeepDraftLayer(config, dtype, caches) for _ in range(config.num_layers - 1))
        self.layers = nn.ModuleList([DraftLayer(config, dtype), *deeper])
        self.norm = RMSNorm(hidden, eps, dtype) if config.final_norm else nn.Identity()
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False, dtype=dtype)
        self.register_buffer("target_ids", torch.arange(config.draft_vocab_size))
        self.kv_cache = caches.cache(config.num_kv_heads, config.head_dim)
        self.positions = PositionGuard(caches.max_seq_len)

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """The boundaries that `fuse` reads, lowest first."""
        return self.config.tap_layers

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.config.hidden_size

    @property
    def default_chain_len(self) -> int | None:
        """Drafts a round that its checkpoint proposes."""
        return self.config.default_chain_len

    def check_target(self, target: TapTarget) -> None:
        """Raise PairingError unless widths and vocabulary are the target's, and nothing lacks."""
        config, load_so = self.config, "load it with load_draft(path, target=...)"
        if config.target_hidden_size != target.hidden_size:
            raise PairingError(
                f"the head reads taps of width {config.target_hidden_size}, "
                f"the target's hidden size is {target.hidden_size}: it was made for another target"
            )
        if config.vocab_size != target.vocab_size:
            raise PairingError(
                f"the head embeds {config.vocab_size} tokens, the target has {target.vocab_size}: "
                "it was made for another target"
            )
        if not self.has_embedding:
            raise PairingError(f"the head has no embedding: {load_so}")
        if not config.tap_layers:
            raise PairingError(f"the head names no tap layers: {load_so}")

    def fuse(self, taps: Tensor) -> Tensor:
        """Concatenated taps [B, T, num_taps * Ht], lowest boundary first -> feature [B, T, H]."""
        if self.config.norm_before_fc:
            taps = self.input_norm(taps)
        if self.config.fc_norm:
            width = self.config.target_hidden_size
            parts = [
                norm(taps[..., i * width : (i + 1) * width]) for i, norm in enumerate(self.fc_norm)
            ]
            taps = torch.cat(parts, dim=-1)
        return self.fc(taps)

    def embed(self, tokens: Tensor) -> Tensor:
        """Target token ids int64 [B, T] -> [B, T, H]."""
        if not self.has_embedding:
            raise SettingError(
                "this head has no embedding of its own: load it with its target "
                "(load_draft(path, target=...))"
            )
        return self.embed_tokens(tokens)

    def logits(self, recurrent: Tensor, wiring: Eagle3Wiring | None = None) -> Tensor:
        """Recurrent feature [B, T, H] -> logits over the draft vocabulary, float32 [B, T, Vd].

        `wiring` is the config's where it is None.
        """
        wiring = wiring or self.config.wiring
        normed = recurrent if wiring.norm_output else self.norm(recurrent)
        return cast(self.lm_head(normed), torch.float32)

    def stream(
        self,
        embedding: Tensor,
        feature: Tensor,
        positions: Tensor,
        attends: Sequence[Attend],
        wiring: Eagle3Wiring,
    ) -> Tensor:
        """embedding, feature [B, T, H] at int64 [B, T] or [T] -> what the last layer returns.

        `attends` are the layers' attentions, which may remember keys and values.
        """
        stream = embedding
        for layer, attend in zip(self.layers, attends, strict=True):
            assert isinstance(layer, DraftBlock)
            residual, q, k, v = layer.project(stream, feature, positions, wiring)
            stream = layer.finish(residual, attend(q, k, v))
        return stream

    def read_out(self, stream: Tensor, wiring: Eagle3Wiring) -> tuple[Tensor, Tensor]:
        """What `stream` returned [B, T, H] -> logits [B, T, Vd], recurrent feature [B, T, H]."""
        recurrent = self.norm(stream) if wiring.norm_output else stream
        return self.logits(recurrent, wiring), recurrent

    def forward_cached(
        self, embedding: Tensor, feature: Tensor, input_pos: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run T slots of the first sequence, as `run` does, and check the positions.

        embedding, feature [1, T, H]; input_pos int64 [T], counting up by one from at most the
        number of filled slots. Raises SettingError on a batch or on positions that leave a gap.
        """
        self.positions.advance(feature, input_pos)
        return self.run(embedding, feature, chain_step(input_pos))

    def run(self, embedding: Tensor, feature: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """One forward: embedding, feature [B, T, H] of the slots of `step` through the caches.

        Returns (logits float32 [B, T, Vd], recurrent feature [B, T, H]).
        """
        view, places = StepView(step, self.kv_cache), step.row_positions
        attends = [self._cached(cache, view) for cache in self._caches()]
        rows, wiring = (one_row_of_rows(embedding), one_row_of_rows(feature)), self.config.wiring
        output = self.stream(*rows, places, attends, wiring)
        logits, recurrent = self.read_out(output, wiring)
        return rows_of_sequences(logits, feature), rows_of_sequences(recurrent, feature)

    def store(self, embedding: Tensor, feature: Tensor, chunk: PromptChunk) -> None:
        """Store a prompt's slots as `run` does: embedding, feature [1, T, H] of `chunk`.

        Nothing is asked of the last layer but its keys and values.
        """
        view, places, stream = PromptView(chunk, self.kv_cache), chunk.row_positions, embedding
        for layer, cache in zip(self.layers, self._caches(), strict=True):
            assert isinstance(layer, DraftBlock)
            residual, q, k, v = layer.project(stream, feature, places, self.config.wiring)
            view.store(cache, k, v)
            if layer is not self.layers[-1]:
                attended = view.attend(cache, q, self.config.head_dim**-0.5)
                stream = layer.finish(residual, attended)

    def _caches(self) -> Iterator[KVCache]:
        """Of the layers, in their order; the first one's is the head's own."""
        yield self.kv_cache
        for layer in self.layers:
            if isinstance(layer, DeepDraftLayer):
                yield layer.kv_cache

    def _cached(self, cache: KVCache, view: StepView) -> Attend:
        """Attention through a cache, to which the rows of `view` are added."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            view.store(cache, k, v)
            return view.attend(cache, q, self.config.head_dim**-0.5)

        return attend

    def further(self, embedding: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """What the slots of drafts behind the first one are handed, [B, T, H] each: the embedding
        of the draft before and the recurrent feature of the slot before, as given."""
        return embedding, feature

    def draft_to_target(self, draft_ids: Tensor) -> Tensor:
        """Draft vocabulary ids -> target ids, same shape, int64."""
        return self.target_ids[draft_ids]

    def reset_cache(self) -> None:
        """Forget all sequences."""
        for cache in self._caches():
            cache.reset()
        self.positions.reset()
