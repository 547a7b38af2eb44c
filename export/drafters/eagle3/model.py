"""The EAGLE-3 draft head: decoder layers over (next token's embedding, feature) pairs.

Slot j has the embedding of token j + 1 and the feature of position j, and predicts token j + 2. A
feature is either *fused* (`fc` of the target's tapped hidden states) or *recurrent* (the head's own
output for the slot before). Math as in SafeAILab/EAGLE `cnets.py`, vLLM, SGLang and speculators.

A P-EAGLE head predicts all drafts at once. After the committed slots it runs slots whose token and
feature are not known: each has the mask token's embedding and one learned feature, at the next
position. Layout and math as in vLLM's `llama_eagle3.py` and `llm_base_proposer.py`.

Shapes: B batch, T slots, H draft hidden, Ht target hidden, V target vocabulary, Vd draft
vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from eagle_aot.artifact import EAGLE3, MASK, P_EAGLE
from eagle_aot.common.errors import PairingError, SettingError
from eagle_aot.export.drafters.eagle3.config import DraftConfig, Eagle3Wiring
from eagle_aot.export.drafters.eagle3.layer import DeepDraftLayer, DraftBlock, DraftLayer
from eagle_aot.export.drafters.target_facts import check_target_sizes
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.cache_views import PromptView, StepView
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.positions import PositionGuard
from eagle_aot.targets.step import PromptChunk, Step, chain_step, one_row_of_rows, rows_of_sequences

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A layer's attention: maps q [B, T, heads, D], k and v [B, T, kv_heads, D] to the shape of q."""


class Eagle3Draft(nn.Module):
    """An EAGLE-3 head with its own KV caches, one per layer.

    `target_ids` int64 [Vd] is the absolute target id of every draft id. The loader may fill
    `embed_tokens` and `lm_head` from the target; without `has_embedding`, `embed` raises.
    """

    kind = EAGLE3
    target_ids: Tensor

    def __init__(self, config: DraftConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.tap_layers, self.hidden_size = config.tap_layers, config.hidden_size
        self.heads = config.num_heads
        self.default_chain_len = config.default_chain_len
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

    def check_target(self, target: TapTarget) -> None:
        """Raise PairingError unless the head is complete and made for this target's geometry."""
        config, way_out = self.config, "load it with load_draft(path, target=...)"
        check_target_sizes(target, config.target_hidden_size, config.vocab_size)
        if not self.has_embedding:
            raise PairingError(f"the head has no embedding: {way_out}")
        if not config.tap_layers:
            raise PairingError(f"the head names no tap layers: {way_out}")

    def fuse(self, taps: Tensor) -> Tensor:
        """Map taps [B, T, num_taps * Ht], lowest boundary first, to features [B, T, H]."""
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
        """Map target token ids int64 [B, T] to embeddings [B, T, H]."""
        if not self.has_embedding:
            raise SettingError(
                "this head has no embedding of its own: load it with its target "
                "(load_draft(path, target=...))"
            )
        return self.embed_tokens(tokens)

    def logits(self, recurrent: Tensor, wiring: Eagle3Wiring | None = None) -> Tensor:
        """Map recurrent features [B, T, H] to logits of the draft vocabulary, float32 [B, T, Vd].

        The default `wiring` is the config's.
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
        """Run all layers on embedding and feature [B, T, H] at positions int64 [B, T] or [T].

        `attends` are the layers' attentions, which may store keys and values. Returns the last
        layer's output [B, T, H].
        """
        stream = embedding
        for layer, attend in zip(self.layers, attends, strict=True):
            assert isinstance(layer, DraftBlock)
            residual, q, k, v = layer.project(stream, feature, positions, wiring)
            stream = layer.finish(residual, attend(q, k, v))
        return stream

    def read_out(self, stream: Tensor, wiring: Eagle3Wiring) -> tuple[Tensor, Tensor]:
        """Map `stream` [B, T, H] to logits float32 [B, T, Vd] and recurrent features [B, T, H]."""
        recurrent = self.norm(stream) if wiring.norm_output else stream
        return self.logits(recurrent, wiring), recurrent

    def forward_cached(
        self, embedding: Tensor, feature: Tensor, input_pos: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run T slots of the first sequence, as `run` does, and check the positions.

        embedding, feature [1, T, H]; input_pos int64 [T], consecutive and starting at or before the
        first empty slot. Raises SettingError for a batch and for positions that leave a gap.
        """
        self.positions.advance(feature, input_pos)
        return self.run(embedding, feature, chain_step(input_pos))

    def run(self, embedding: Tensor, feature: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Run embedding and feature [B, T, H] of the slots of `step` through the caches.

        Returns logits float32 [B, T, Vd] and recurrent features [B, T, H].
        """
        view, positions = StepView(step, self.kv_cache), step.row_positions
        attends = [self._cached(cache, view) for cache in self._caches()]
        embedded, features = one_row_of_rows(embedding), one_row_of_rows(feature)
        wiring = self.config.wiring
        output = self.stream(embedded, features, positions, attends, wiring)
        logits, recurrent = self.read_out(output, wiring)
        return rows_of_sequences(logits, feature), rows_of_sequences(recurrent, feature)

    def store(self, embedding: Tensor, feature: Tensor, chunk: PromptChunk) -> None:
        """Store a prompt's slots as `run` does: embedding and feature [1, T, H] of `chunk`.

        Of the last layer only the keys and values are computed.
        """
        view, positions, stream = PromptView(chunk, self.kv_cache), chunk.row_positions, embedding
        for layer, cache in zip(self.layers, self._caches(), strict=True):
            assert isinstance(layer, DraftBlock)
            residual, q, k, v = layer.project(stream, feature, positions, self.config.wiring)
            view.store(cache, k, v)
            if layer is not self.layers[-1]:
                attended = view.attend(cache, q, self.config.head_dim**-0.5)
                stream = layer.finish(residual, attended)

    def _caches(self) -> Iterator[KVCache]:
        """Yield the layers' caches in order; the first layer's is the head's `kv_cache`."""
        yield self.kv_cache
        for layer in self.layers:
            if isinstance(layer, DeepDraftLayer):
                yield layer.kv_cache

    def _cached(self, cache: KVCache, view: StepView) -> Attend:
        """Return an attention through a cache that stores the rows of `view` first."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            view.store(cache, k, v)
            return view.attend(cache, q, self.config.head_dim**-0.5)

        return attend

    def next_inputs(self, embedding: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs [B, T, H] of a chain's next slots: the embedding of the last draft and
        the recurrent feature of the last slot, as given."""
        return embedding, feature

    def reset_cache(self) -> None:
        """Empty the caches of all sequences."""
        for cache in self._caches():
            cache.reset()
        self.positions.reset()


class ParallelDraft(Eagle3Draft):
    """A P-EAGLE head; `mask_feature` [1, 1, H] is the fused feature of its mask."""

    kind = P_EAGLE

    def __init__(self, config: DraftConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__(config, dtype, caches)
        zeros = torch.zeros(1, 1, config.hidden_size, dtype=dtype)
        self.mask_feature = nn.Parameter(zeros, requires_grad=False)

    @property
    def mask_token(self) -> int:
        """The target's token whose embedding replaces an unknown token's."""
        assert self.config.mask_token_id is not None
        return self.config.mask_token_id

    @torch.no_grad()
    def set_mask(self, taps: Tensor) -> None:
        """Fuse the mask's `taps`, num_taps * Ht values in any shape [...]."""
        self.mask_feature.copy_(self.fuse(taps.reshape(1, 1, -1)))

    def unmasked(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings and features [B, T, H] for `run`, from tokens int64 [B, T] and features
        [B, T, H]: the mask's if a token is `MASK`."""
        unknown = tokens == MASK
        embedding = self.embed(torch.where(unknown, self.mask_token, tokens))
        return embedding, torch.where(unknown.unsqueeze(-1), self.mask_feature, features)

    def next_inputs(self, embedding: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.full(feature.shape[:2], MASK, device=feature.device)
        return self.unmasked(mask, feature)


def new_draft(config: DraftConfig, dtype: torch.dtype, caches: CacheSpec) -> Eagle3Draft:
    """Make an EAGLE-3 head or, if the config has a mask, a P-EAGLE head."""
    model = Eagle3Draft if config.mask_token_id is None else ParallelDraft
    return model(config, dtype, caches)
