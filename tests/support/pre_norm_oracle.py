"""Random checkpoints of pre-norm families, and rotary frequencies, as transformers makes them."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from support.gemma_oracle import VOCAB

EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "mlp_only_layers": [2],
}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (partial(MistralConfig, sliding_window=None), MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (partial(Qwen3MoeConfig, **EXPERTS), Qwen3MoeForCausalLM),
}
STACKED = {"phi3": (partial(Phi3Config, pad_token_id=None), Phi3ForCausalLM)}
"""Families whose checkpoints have other names of linears."""
LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
YARN_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
GEOMETRY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "tie_word_embeddings": True,
}


def random_pre_norm(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Return a float32 model in which every norm weight and every bias matters."""
    torch.manual_seed(seed)
    geometry = {k: dict(v) if isinstance(v, dict) else v for k, v in (GEOMETRY | changes).items()}
    kind, model_kind = (FAMILIES | STACKED)[family]
    model = model_kind(kind(attn_implementation="eager", **geometry)).float().eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name:
                tensor.uniform_(0.5, 1.5)
            elif name.endswith(".bias"):
                tensor.normal_()
            else:
                tied = geometry["tie_word_embeddings"] or "embed_tokens" not in name
                tensor.normal_(std=tensor.shape[1] ** -0.5 if tied else 1)
    return model


def save(model: PreTrainedModel, directory: Path) -> Path:
    """Save a checkpoint as transformers does."""
    model.save_pretrained(directory)
    return directory


def stacked(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of a checkpoint by name, with those of experts stacked as transformers has
    them."""
    experts = {n: t for n, t in values.items() if ".experts." in n and n.endswith(".weight")}
    owners = dict.fromkeys(name.partition(".experts.")[0] for name in experts)
    stacks = {}
    for owner in owners:
        parts = {
            part: [
                values[f"{owner}.experts.{expert}.{part}.weight"]
                for expert in range(sum(n.startswith(f"{owner}.experts.") for n in experts) // 3)
            ]
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        gate, up, down = map(torch.stack, parts.values())
        stacks[f"{owner}.experts.gate_up_proj"] = torch.cat((gate, up), 1)
        stacks[f"{owner}.experts.down_proj"] = down
    return {name: t for name, t in values.items() if name not in experts} | stacks


def rope_frequencies(
    rope: dict[str, Any], head_dim: int, context: int, length: int = 1
) -> tuple[Tensor, float]:
    """Return radians per position [head_dim / 2], and the factor of cosines and sines.

    `context` is the length of training, `length` the number of tokens.
    """
    if rope["rope_type"] == "default":
        return rope["rope_theta"] ** (-torch.arange(0, head_dim, 2).double() / head_dim), 1.0
    config = LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim,
        max_position_embeddings=context, rope_parameters=dict(rope),
    )  # fmt: skip
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, None, seq_len=length)


def rope_tables(rope: dict[str, Any], head_dim: int, context: int, positions: Tensor) -> Tensor:
    """Return cosines and sines of positions int64 [T]: float64 [2, T, 1, head_dim]."""
    radians, factor = rope_frequencies(rope, head_dim, context, int(positions.max()) + 1)
    angles = (positions.double()[:, None, None] * radians.double()).repeat(1, 1, 2)
    return torch.stack((angles.cos(), angles.sin())) * factor
