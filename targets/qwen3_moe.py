"""Qwen3 decoders with experts in place of the MLP, in all layers or in some.

Math as in transformers 5.23 `modeling_qwen3_moe.py`: attention as in dense Qwen3; the router's
softmax covers all experts, and a row takes the first `num_experts_per_tok` of them.
"""

from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.config_section import MAX_LAYERS, ConfigSection
from eagle_aot.targets.decoder.experts import (
    META,
    ExpertChoice,
    Experts,
    ExpertsConfig,
    RouterLinear,
    read_experts,
)
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.rope import Rope
from eagle_aot.targets.family import Family, Published
from eagle_aot.targets.pre_norm.config import FULL, PreNormConfig
from eagle_aot.targets.pre_norm.model import PreNormDecoder, PreNormLayer, load_pre_norm
from eagle_aot.targets.qwen import HEAD_DIM, read_qwen3

MODEL_TYPE = "qwen3_moe"
# What transformers assumes if config.json has no such key.
NUM_EXPERTS, TOP_K, INTERMEDIATE_SIZE, SPARSE_STEP = 128, 8, 768, 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Qwen3MoeConfig(PreNormConfig):
    """The geometry of a decoder with `experts`. Layers in `mlp_only_layers`, counted from 0, have
    a dense MLP of `intermediate_size`."""

    experts: ExpertsConfig
    mlp_only_layers: frozenset[int] = frozenset()


def read_qwen3_moe(config: ConfigSection, max_seq_len: int) -> Qwen3MoeConfig:
    """Read a config.json. Raises CheckpointError and UnsupportedError."""
    dense = read_qwen3(config, max_seq_len, MODEL_TYPE)
    experts = read_experts(
        config,
        count=config.any_of(("num_experts", "num_local_experts"), NUM_EXPERTS),
        top_k=config.count("num_experts_per_tok", TOP_K),
        intermediate_size=config.count("moe_intermediate_size", INTERMEDIATE_SIZE),
        norm_topk_prob=config.flag("norm_topk_prob"),
    )
    return Qwen3MoeConfig(
        **{field.name: getattr(dense, field.name) for field in fields(dense)},
        experts=experts,
        mlp_only_layers=_mlp_only_layers(config, dense.num_hidden_layers),
    )


def _mlp_only_layers(config: ConfigSection, layers: int) -> frozenset[int]:
    """Return the layers without experts: those that are listed, and all but each
    `decoder_sparse_step`-th one."""
    step = config.count("decoder_sparse_step", SPARSE_STEP, most=MAX_LAYERS)
    listed = config.values.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(layer) is int for layer in listed):
        raise CheckpointError(f"{config.where}: mlp_only_layers is {listed!r}, expected integers")
    return frozenset(i for i in range(layers) if i in listed or (i + 1) % step)


class SparseMLP(nn.Module):
    """Experts and the router `gate`, which reads the same rows."""

    def __init__(self, config: Qwen3MoeConfig, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, experts = config.hidden_size, config.experts
        self.choice = ExpertChoice(experts)
        self.gate = RouterLinear(hidden, experts.num_experts, bias=False, dtype=dtype, device=META)
        self.experts = Experts(experts, hidden, "silu", dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Apply its experts to each row of `x` [1, T, H]; same shape, or parts [k, 1, T, H]."""
        rows = x.squeeze(0)
        mixed: Tensor = self.experts(rows, *self.choice(self.gate(rows)))
        return mixed.unsqueeze(-3)


class Qwen3MoeDecoder(PreNormDecoder):
    """A `PreNormDecoder` whose layers have experts, except for `mlp_only_layers`."""

    def __init__(self, config: Qwen3MoeConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__(config, dtype, caches)
        for number, layer in enumerate(self.layers):
            if number not in config.mlp_only_layers:
                assert isinstance(layer, PreNormLayer)
                layer.add_module("mlp", SparseMLP(config, dtype))
                layer.branch_outputs = "self_attn.o_proj", "mlp.experts"


QWEN3_30B_A3B = Qwen3MoeConfig(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=6144,
    layer_types=(FULL,) * 48,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=HEAD_DIM,
    rms_norm_eps=1e-6,
    rope=Rope(theta=1e6),
    tie_word_embeddings=False,
    qk_norm=True,
    experts=ExpertsConfig(num_experts=128, top_k=8, intermediate_size=768),
)
"""Qwen/Qwen3-30B-A3B; sizes from transformers' defaults and general knowledge."""

QWEN3_MOE = Family(
    model_types=(MODEL_TYPE,),
    load=partial(load_pre_norm, read_qwen3_moe, Qwen3MoeDecoder),
    read_config=read_qwen3_moe,
    decoder=Qwen3MoeDecoder,
    published=(Published("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", QWEN3_30B_A3B),),
)
