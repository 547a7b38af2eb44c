"""The EAGLE-3 draft head: decoder layers over (next token's embedding, feature) pairs.

Slot j holds the embedding of token j + 1 and the feature of position j, and predicts token j + 2.
A feature is either *fused* (`fc` of the target's tapped hidden states) or *recurrent* (the head's
own output for the slot before). Math as in SafeAILab/EAGLE `cnets.py`, on which vLLM, SGLang and
speculators agree. Shapes: B batch, T slots, H draft hidden, V target vocabulary, Vd draft
vocabulary.
"""

import torch
from torch import Tensor, nn

from eagle_aot.artifact import VERIFY_SLACK
from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.eagle3.config import DraftConfig
from eagle_aot.export.drafters.eagle3.layer import DeepDraftLayer, DraftBlock, DraftLayer
from eagle_aot.targets.decoder.kv_cache import Chunk, FlatKVCache, KVCache
from eagle_aot.targets.decoder.norms import RMSNorm, cast
from eagle_aot.targets.decoder.positions import PositionGuard
from eagle_aot.targets.int4.packed_linear import PackedModule


class Eagle3Draft(nn.Module):
    """An EAGLE-3 head with its own KV caches, one per layer, for `max_seq_len` positions.

    `target_ids` int64 [Vd] is the target id of every draft id (absolute, not offsets).
    `embed_tokens` and `lm_head` may be filled from the target by the loader; until then a head
    whose checkpoint has no embedding refuses to embed (`has_embedding`).
    """

    target_ids: Tensor

    def __init__(
        self, config: DraftConfig, max_seq_len: int = 4096, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.config = config
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
        slots = max_seq_len + VERIFY_SLACK
        deeper = (DeepDraftLayer(config, slots, dtype) for _ in range(config.num_layers - 1))
        self.layers = nn.ModuleList([DraftLayer(config, dtype), *deeper])
        self.norm = RMSNorm(hidden, eps, dtype) if config.final_norm else nn.Identity()
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False, dtype=dtype)
        self.register_buffer("target_ids", torch.arange(config.draft_vocab_size))
        self.kv_cache = FlatKVCache(config.num_kv_heads, slots, config.head_dim, dtype)
        self.positions = PositionGuard(slots)

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

    def logits(self, recurrent: Tensor) -> Tensor:
        """Recurrent feature [B, T, H] -> logits over the draft vocabulary, float32 [B, T, Vd]."""
        normed = recurrent if self.config.norm_output else self.norm(recurrent)
        return cast(self.lm_head(normed), torch.float32)

    def forward_cached(
        self, embedding: Tensor, feature: Tensor, input_pos: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run T slots of one sequence through the cache.

        embedding, feature [1, T, H]; input_pos int64 [T], counting up by one from at most the
        number of filled slots. Returns (logits float32 [1, T, Vd], recurrent feature [1, T, H]).
        Raises SettingError on a batch or on positions that leave a gap (eager only).
        """
        self.positions.advance(feature, input_pos)
        first, *deeper = self.layers
        assert isinstance(first, DraftLayer)
        chunk = Chunk(input_pos, self.kv_cache)
        projected = first.project(embedding, feature, input_pos)
        output = self._attend(first, self.kv_cache, projected, chunk)
        for layer in deeper:
            assert isinstance(layer, DeepDraftLayer)
            projected = layer.project(output, input_pos)
            output = self._attend(layer, layer.kv_cache, projected, chunk)
        recurrent = self.norm(output) if self.config.norm_output else output
        return self.logits(recurrent), recurrent

    def _attend(
        self,
        layer: DraftBlock,
        cache: FlatKVCache,
        projected: tuple[Tensor, Tensor, Tensor, Tensor],
        chunk: Chunk,
    ) -> Tensor:
        """A layer's output [1, T, H] from its first half's."""
        residual, q, k, v = projected
        cache.update(k.transpose(1, 2), v.transpose(1, 2), chunk.input_pos)
        return layer.finish(residual, cache.attend(q, chunk, scale=self.config.head_dim**-0.5))

    def draft_to_target(self, draft_ids: Tensor) -> Tensor:
        """Draft vocabulary ids -> target ids, same shape, int64."""
        return self.target_ids[draft_ids]

    def tile_rows(self) -> None:
        """Let packed weights of `forward_cached` serve few rows and many by one operator.

        A prompt's slots go through it and a round's. `fc` belongs to the target's methods.
        """
        for module in (*self.layers.modules(), self.lm_head):
            if isinstance(module, PackedModule):
                module.row_tiles = True

    def reset_cache(self) -> None:
        """Start a new sequence."""
        for module in self.modules():
            if isinstance(module, KVCache):
                module.reset()
        self.positions.reset()
