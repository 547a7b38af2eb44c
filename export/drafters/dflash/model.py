"""A DFlash head: decoder layers that fill in a block of masks after the tokens of a sequence.

The keys and values of committed tokens are computed from the target's features,
`hidden_norm(fc(taps))`, which are the same for every layer. A block is the bonus token and masks;
each row predicts the token at its own position. Math as in z-lab's `dflash/model.py`. Shapes: Ht
the target's width, H the head's, V the target's vocabulary, Vd the head's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from eagle_aot.artifact import DFLASH
from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.head_tensors import empty_linear
from eagle_aot.export.drafters.target_facts import check_target_sizes
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.attention import additive
from eagle_aot.targets.decoder.cache_views import StepView
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.rope import apply_rotary
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.targets.pre_norm.config import SLIDING, PreNormConfig
from eagle_aot.targets.pre_norm.model import PreNormAttention, PreNormLayer
from eagle_aot.targets.step import TAIL, Step, one_row_of_rows, rows_of_sequences

AHEAD = TAIL - 1
"""How far ahead of itself a row of a block sees at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DFlashConfig:
    """Geometry and options of a head, all read from its checkpoint.

    `layers` describes the head's own layers, whose vocabulary is the target's. `tap_layers` are
    boundaries, ascending. A block is the bonus token and `block_size` - 1 masks, which are the
    target's token `mask_token_id`. Rows of a block see each other both ways; with `causal_windows`
    they see only earlier ones in sliding layers, with `causal` in all. Embeddings are multiplied by
    `embedding_scale`, logits by `logit_scale` and then capped by `softcap`, if there is one.
    """

    layers: PreNormConfig
    target_hidden_size: int
    tap_layers: tuple[int, ...]
    draft_vocab_size: int
    block_size: int
    mask_token_id: int
    causal_windows: bool = True
    causal: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def extend(cls, config: "DFlashConfig", **own: Any) -> Self:
        """Return `config` with the fields that only heads of this class have."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(config)}, **own)

    @property
    def first_draft(self) -> int:
        """The first row of a block that predicts a draft."""
        return 1

    @property
    def drafts(self) -> int:
        """How many drafts a block of `block_size` rows has."""
        return self.block_size - self.first_draft

    @property
    def vocab_size(self) -> int:
        return self.layers.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.layers.hidden_size


class DFlashAttention(PreNormAttention):
    """Attention whose keys and values of committed tokens are projected without queries."""

    def fuse_linears(self, multiprocessors: int) -> None:
        """Keep the linears apart: with one packed weight, `store` would compute queries, too."""

    def store(self, features: Tensor, context: Context) -> None:
        """Store the keys and values of features [1, T, H], to which the layer applies no norm."""
        assert self.k_proj is not None and self.v_proj is not None
        k, v = (
            linear(features).unflatten(-1, (-1, self.head_dim))
            for linear in (self.k_proj, self.v_proj)
        )
        k = apply_rotary(self.k_norm(k), context.rotary)
        context.view.store(self.kv_cache, k, v)


class DFlashLayer(PreNormLayer):
    """A layer of Qwen3 with `DFlashAttention`."""

    def attention(
        self, config: PreNormConfig, kind: str, dtype: torch.dtype, caches: CacheSpec
    ) -> DFlashAttention:
        return DFlashAttention(config, kind, dtype, caches)

    def store(self, features: Tensor, context: Context) -> None:
        """Store the keys and values of features [1, T, H]."""
        assert isinstance(self.self_attn, DFlashAttention)
        self.self_attn.store(features, context)


class BlockView(StepView):
    """A view in which each row is stored at its own position, and sees its whole block.

    The tail of a row is the row and what follows it in the block, and all before it is committed.
    So attention gets positions and a window that are `AHEAD` larger, and a sliding window is
    counted from the row, both ways.
    """

    def __init__(self, rows: Step, cache: KVCache) -> None:
        """`rows` are at most `TAIL` consecutive rows of each sequence."""
        ahead = torch.arange(TAIL, device=rows.positions.device)
        slots = rows.positions.unsqueeze(-1) + ahead
        seen = slots <= rows.positions[:, -1:].unsqueeze(-1)
        if cache.window:
            seen = seen & (ahead < cache.window)
        is_row = rows.positions >= 0
        shifted = Step(
            torch.where(is_row, rows.positions + AHEAD, -1),
            rows.sequences,
            torch.where(seen & is_row.unsqueeze(-1), slots, -1),
            use_splitk=rows.use_splitk,
        )
        super().__init__(shifted, cache)
        self.window = cache.window + AHEAD if cache.window else 0
        self._rows = StepView(rows, cache)

    @cached_property
    def mask(self) -> Tensor:
        """Additive mask of the slots before each row, float32 [B * T, 1, slots]."""
        positions = self._rows.step.row_positions[0]
        return additive(self._cache.committed(positions - 1, positions)).unsqueeze(1)

    @property
    def row_slots(self) -> Tensor:
        """The slot in which each row is stored, int64 [B * T]."""
        return self._rows.row_slots


class DFlashDraft(nn.Module):
    """A head with a KV cache per layer; only the committed tokens in it can be seen later.
    `embed_tokens` and `lm_head` may be the target's."""

    kind = DFLASH
    target_ids: Tensor

    def __init__(self, config: DFlashConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.tap_layers, self.hidden_size = config.tap_layers, config.hidden_size
        self.default_chain_len: int | None = config.drafts
        hidden, eps = config.hidden_size, config.layers.rms_norm_eps
        taps_width = len(config.tap_layers) * config.target_hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden, dtype=dtype, device="meta")
        self.fc = empty_linear(taps_width, hidden, dtype)
        self.hidden_norm = RMSNorm(hidden, eps, dtype)
        self.layers = nn.ModuleList(
            self.layer(kind, dtype, caches) for kind in config.layers.layer_types
        )
        self.norm = RMSNorm(hidden, eps, dtype)
        self.lm_head = empty_linear(hidden, config.draft_vocab_size, dtype)
        self.rotary = config.layers.rope.embedding(config.layers.head_dim)
        self.register_buffer("target_ids", torch.arange(config.draft_vocab_size), persistent=False)

    def layer(self, kind: str, dtype: torch.dtype, caches: CacheSpec) -> DFlashLayer:
        """Make a layer of this kind; subclasses may make another."""
        return DFlashLayer(self.config.layers, kind, dtype, caches)

    def check_target(self, target: TapTarget) -> None:
        """Raise PairingError unless the head was made for a target of this geometry."""
        config = self.config
        check_target_sizes(target, config.target_hidden_size, config.vocab_size)
        if config.tap_layers[-1] > target.num_hidden_layers:
            raise PairingError(
                f"the head taps boundary {config.tap_layers[-1]}, the target has "
                f"{target.num_hidden_layers} layers: it was made for another target"
            )
        if config.mask_token_id >= target.vocab_size:
            raise PairingError(
                f"the head's mask is token {config.mask_token_id}, the target has "
                f"{target.vocab_size}: it was made for another target"
            )

    def fuse(self, taps: Tensor) -> Tensor:
        """Map taps [1, T, n_taps * Ht], lowest boundary first, to features [1, T, H]."""
        return self.hidden_norm(self.fc(taps))

    def store(self, features: Tensor, step: Step) -> None:
        """Store the keys and values of features [B, T, H] at the rows of `step`."""
        rows, contexts = one_row_of_rows(features), self._contexts(step, block=False)
        for layer in self._layers():
            layer.store(rows, contexts[layer.kind])

    def run(self, tokens: Tensor, step: Step) -> Tensor:
        """Run blocks: the first rows are those of tokens int64 [B, T], all others are masks.

        The rows of `step` are consecutive and follow all stored ones. Returns logits float32
        [B, T, Vd]: row i predicts the token at its own position, row 0 predicts nothing.
        """
        return rows_of_sequences(self._logits(self._states(tokens, step)), tokens)

    def run_block(self, tokens: Tensor, step: Step) -> Tensor | tuple[Tensor, ...]:
        """Run blocks as a program does: tokens int64 [B, T]. Returns what `run` does; other forms
        also return what their further methods read of each row, [B, T, ...]."""
        return self.run(tokens, step)

    def _states(self, tokens: Tensor, step: Step) -> Tensor:
        """Run blocks, as `run` says; return the states [1, B * T, H] after the final norm."""
        row = torch.arange(tokens.shape[1], device=tokens.device)
        masked = torch.where(row == 0, tokens, self.config.mask_token_id)
        return self.fill_in(one_row_of_rows(masked), self._contexts(step, block=True))

    def fill_in(self, tokens: Tensor, contexts: Mapping[str, Context]) -> Tensor:
        """Run the rows of blocks: `tokens` int64 [S, N], which see what the context of each kind of
        layer says. Returns the states [S, N, H] after the final norm."""
        stream = self.embed_tokens(tokens)
        if self.config.embedding_scale != 1.0:
            stream = stream * self.config.embedding_scale
        layers = list(self._layers())
        norms = [*(layer.input_layernorm for layer in layers), self.norm]
        normed = norms[0](stream)
        for layer, norm in zip(layers, norms[1:], strict=True):
            stream, normed = layer(stream, normed, contexts[layer.kind], norm)
        return normed

    def _logits(self, normed: Tensor) -> Tensor:
        logits, config = cast(self.lm_head(normed), torch.float32), self.config
        if config.logit_scale != 1.0:
            logits = logits * config.logit_scale
        if config.softcap is not None:
            logits = config.softcap * torch.tanh(logits / config.softcap)
        return logits

    def _contexts(self, step: Step, *, block: bool) -> dict[str, Context]:
        """Return the cache view and rotary tables of `step` for each kind of layer."""
        rotary = self.rotary(step.row_positions)
        caches = {layer.kind: layer.kv_cache for layer in self._layers()}
        windows, everywhere = self.config.causal_windows, self.config.causal
        causal = {kind: everywhere or (windows and kind == SLIDING) for kind in caches}
        return {
            kind: Context(
                BlockView(step, cache) if block and not causal[kind] else StepView(step, cache),
                rotary,
            )
            for kind, cache in caches.items()
        }

    def _layers(self) -> Iterator[DFlashLayer]:
        for layer in self.layers:
            assert isinstance(layer, DFlashLayer)
            yield layer

    def reset_cache(self) -> None:
        """Empty the caches of all sequences."""
        for layer in self._layers():
            layer.kv_cache.reset()
