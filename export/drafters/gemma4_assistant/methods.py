"""The method of an assistant."""

import torch
from torch import Tensor

from eagle_aot.artifact import MTP_DECODE
from eagle_aot.export.drafters.gemma4_assistant.model import Gemma4Assistant, source_caches
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import ALL_ROWS, MethodSpec, features_input, step_inputs
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.step import Step
from eagle_aot.triton_kernels.sdpa_splitk import is_servable


class MtpDecodeMethod(Method):
    """Runs rows that see the newest keys of their sequences, one row for each branch of a tree.

    tokens int64 [B, T]; positions, sequences and tail of a `Step`, those of each row's newest key;
    features [B, T, Ht], the target's states for the first rows of a round and the assistant's for
    later rows. Returns logits float32 [B, T, V] and states [B, T, Ht].
    """

    draft: Gemma4Assistant

    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(self.target, Gemma4Target)
        step = Step(positions, sequences, tail, use_splitk=self.use_splitk)
        for cache in source_caches(self.draft, self.target, self.draft.config.wiring).values():
            mark_as_written(cache)
        return self.draft.run(self.target, tokens, features, step)


def mark_as_written(cache: KVCache) -> None:
    """Copy a padding slot to itself.

    A program's methods share a buffer only if each of them writes it; a method that only reads a
    buffer would get a constant of zeros.
    """
    for buffer in (cache.k, cache.v):
        last = torch.full((1,), buffer.shape[1] - 1, dtype=torch.int64, device=buffer.device)
        cache.write(buffer, last, buffer.index_select(1, last))


def methods(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> dict[str, MethodSpec]:
    """Return `mtp_decode`. An assistant for which the operator for few rows has no kernel keeps the
    stock attention."""
    draft, target = pair.draft, pair.target
    assert isinstance(draft, Gemma4Assistant) and isinstance(target, Gemma4Target)
    caches = source_caches(draft, target, draft.config.wiring).values()
    heads = draft.config.text.num_attention_heads
    served = use_splitk and all(is_servable(heads, cache.k) for cache in caches)
    batch = lengths.max_batch_size
    spec = MethodSpec(
        module=MtpDecodeMethod(pair, served),
        inputs=step_inputs(batch) | features_input(batch, draft.hidden_size, target.dtype),
        outputs=ALL_ROWS,
        writes=buffers_of(pair, list(caches)),
        min_rows=1,
        max_rows=lengths.max_draft,
        few_rows=True,
        use_splitk=served,
    )
    return {MTP_DECODE: spec}


def buffers_of(pair: Pair, caches: list[KVCache]) -> frozenset[str]:
    """Return the names of the buffers of `caches` in the pair."""
    paths = [path for path, module in pair.named_modules() if any(module is c for c in caches)]
    return frozenset(f"{path}.{buffer}" for path in paths for buffer in ("k", "v"))
