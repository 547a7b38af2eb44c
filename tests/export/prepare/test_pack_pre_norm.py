"""INT4 weights of a pre-norm decoder: packed as those of Gemma 4, to the same bits."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.targets import llama, qwen3
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.norms import RMSNorm
from eagle_aot.targets.decoder.weights import fill_dummy
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.int4.linear import PackedModule
from eagle_aot.targets.pre_norm.config import FULL, PreNormConfig
from eagle_aot.targets.pre_norm.model import PreNormDecoder
from support.gemma_oracle import run_in_chunks

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "layer_types": (FULL,) * 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def small_target(published: PreNormConfig) -> PreNormDecoder:
    """Of random INT4 weights, as a CUDA export loads them."""
    torch.manual_seed(0)
    target = PreNormDecoder(
        replace(published, **SMALL), torch.bfloat16, CacheSpec(64, torch.bfloat16)
    )
    fill_dummy(target, 32, torch.bfloat16)
    for norm in (m for m in target.modules() if isinstance(m, RMSNorm)):
        assert norm.weight is not None
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    target.set_eagle_tap_layers([0, 1, 2, 3])
    return target.eval()


@torch.no_grad()
def outputs(target: PreNormDecoder) -> tuple[Tensor, Tensor]:
    """Of a prompt, rows that are verified, and single ones."""
    target.reset_cache()
    return run_in_chunks(target, torch.arange(3, 43)[None], [20, 8, 5, 1])


@pytest.mark.parametrize(
    "published", [qwen3.QWEN3_0_6B, llama.LLAMA_3_1_8B], ids=["qwen3", "llama"]
)
def test_a_packed_target_computes_what_it_did(published: PreNormConfig) -> None:
    target = small_target(published)
    expected = outputs(target)
    target = pack_int4(target, 132)
    kinds = [type(m).__name__ for m in target.modules() if isinstance(m, PackedModule)]
    assert kinds.count("PackedProjections") == kinds.count("PackedGatedInt4") == 3
    assert kinds.count("PackedInt4Linear") == 2 * 3
    assert not any(isinstance(m, Int4Linear) for m in target.modules())
    assert all(torch.equal(a, b) for a, b in zip(outputs(target), expected, strict=True))
