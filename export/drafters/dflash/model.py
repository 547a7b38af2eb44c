"""A DFlash head: a few decoder layers that fill in a block of masks behind a text.

Of a text the head has keys and values, made of features of the target: `hidden_norm(fc(taps))`, the
same for every layer. A block is the bonus token and masks, each row of which says what token stands
at its own position. Math as in z-lab's `dflash/model.py`. Shapes: Ht the target's width, H the
head's, V the target's vocabulary, Vd the head's.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from eagle_aot.artifact import DFLASH
from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.dflash.config import DFlashConfig
from eagle_aot.export.drafters.dflash.layer import BlockView, DFlashLayer, linear
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.cache_views import StepView
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.tap_decoder import Context
from eagle_aot.targets.pre_norm.config import SLIDING
from eagle_aot.targets.step import Step, one_row_of_rows, rows_of_sequences


class DFlashDraft(nn.Module):
    """A head with caches of its own, one for each layer; of committed tokens alone they hold what
    may be seen. `embed_tokens` and `lm_head` may be the target's."""

    kind = DFLASH
    target_ids: Tensor

    def __init__(self, config: DFlashConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        hidden, eps = config.hidden_size, config.layers.rms_norm_eps
        taps_width = len(config.tap_layers) * config.target_hidden_size
        self.embed_tokens = nn.Embedding(
            config.layers.vocab_size, hidden, dtype=dtype, device="meta"
        )
        self.fc = linear(taps_width, hidden, dtype)
        self.hidden_norm = RMSNorm(hidden, eps, dtype)
        self.layers = nn.ModuleList(
            DFlashLayer(config.layers, kind, dtype, caches) for kind in config.layers.layer_types
        )
        self.norm = RMSNorm(hidden, eps, dtype)
        self.lm_head = linear(hidden, config.draft_vocab_size, dtype)
        self.rotary = config.layers.rope.embedding(config.layers.head_dim)
        self.register_buffer("target_ids", torch.arange(config.draft_vocab_size), persistent=False)

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
        """All masks of a block."""
        return self.config.block_size - 1

    def check_target(self, target: TapTarget) -> None:
        """Raise PairingError unless widths and vocabulary are the target's."""
        config = self.config
        for what, own, found in (
            ("hidden size", config.target_hidden_size, target.hidden_size),
            ("vocabulary", config.layers.vocab_size, target.vocab_size),
        ):
            if own != found:
                raise PairingError(f"the target's {what} is {found}, the head was made for {own}")
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
        """Concatenated taps [1, T, n_taps * Ht], lowest boundary first -> features [1, T, H]."""
        return self.hidden_norm(self.fc(taps))

    def store(self, features: Tensor, step: Step) -> None:
        """Store the keys and values of a text's features [B, T, H] at the rows of `step`."""
        rows, contexts = one_row_of_rows(features), self._contexts(step, block=False)
        for layer in self._layers():
            layer.store(rows, contexts[layer.kind])

    def run(self, tokens: Tensor, step: Step) -> Tensor:
        """One forward of blocks: their first tokens are those of int64 [B, T], all others masks.

        `step` are consecutive rows behind all that is stored. Returns logits float32 [B, T, Vd], of
        which row i says what stands at its own position; row 0 says nothing.
        """
        contexts = self._contexts(step, block=True)
        row = torch.arange(tokens.shape[1], device=tokens.device)
        masked = torch.where(row == 0, tokens, self.config.mask_token_id)
        stream = self.embed_tokens(one_row_of_rows(masked))
        if self.config.embedding_scale != 1.0:
            stream = stream * self.config.embedding_scale
        layers = list(self._layers())
        norms = [*(layer.input_layernorm for layer in layers), self.norm]
        normed = norms[0](stream)
        for layer, norm in zip(layers, norms[1:], strict=True):
            stream, normed = layer(stream, normed, contexts[layer.kind], norm)
        return rows_of_sequences(self._logits(normed), tokens)

    def _logits(self, normed: Tensor) -> Tensor:
        logits, config = cast(self.lm_head(normed), torch.float32), self.config
        if config.logit_scale != 1.0:
            logits = logits * config.logit_scale
        if config.softcap is not None:
            logits = config.softcap * torch.tanh(logits / config.softcap)
        return logits

    def _contexts(self, step: Step, *, block: bool) -> dict[str, Context]:
        """By kind of layer: what its rows see, and their angles."""
        rotary = self.rotary(step.row_positions)
        caches = {layer.kind: layer.kv_cache for layer in self._layers()}
        causal = {SLIDING} if self.config.causal_windows else set()
        return {
            kind: Context(
                BlockView(step, cache) if block and kind not in causal else StepView(step, cache),
                rotary,
            )
            for kind, cache in caches.items()
        }

    def _layers(self) -> Iterator[DFlashLayer]:
        for layer in self.layers:
            assert isinstance(layer, DFlashLayer)
            yield layer

    def reset_cache(self) -> None:
        """Forget all sequences."""
        for layer in self._layers():
            layer.kv_cache.reset()
