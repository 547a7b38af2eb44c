"""Random EAGLE-3 heads, written in the layouts that public heads come in."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """Sizes and options of a head; `seed` decides its weights."""

    hidden: int = 32
    target_hidden: int = 32
    num_taps: int = 3
    vocab: int = 96
    draft_vocab: int = 40
    inner: int = 48
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    biases: bool = False
    qk_norm: bool = False
    final_norm: bool = True
    num_layers: int = 1
    own_embedding: bool = True
    rope_theta: float = 10000.0
    seed: int = 0


def head_tensors(shape: HeadShape) -> Tensors:
    """All tensors under their canonical names, with an unsorted map to target ids."""
    generator = torch.Generator().manual_seed(shape.seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator) * size[-1] ** -0.5

    def norm(size: int) -> Tensor:
        return 0.5 + torch.rand(size, generator=generator)

    hidden, taps_width = shape.hidden, shape.num_taps * shape.target_hidden
    linears = {"fc": (hidden, taps_width)} | layer_linears(shape)
    tensors = {f"{name}.weight": normal(*size) for name, size in linears.items()}
    if shape.biases:
        tensors |= {f"{name}.bias": normal(size[0]) for name, size in linears.items()}
    for i in range(shape.num_layers):
        names = ["input_layernorm", "hidden_norm", "post_attention_layernorm"]
        for name in names if i == 0 else names[::2]:
            tensors[f"layers.{i}.{name}.weight"] = norm(hidden)
        for name in ("q_norm", "k_norm") if shape.qk_norm else ():
            tensors[f"layers.{i}.self_attn.{name}.weight"] = norm(shape.head_dim)
    if shape.final_norm:
        tensors["norm.weight"] = norm(hidden)
    tensors["lm_head.weight"] = normal(shape.draft_vocab, hidden)
    if shape.own_embedding:
        tensors["embed_tokens.weight"] = normal(shape.vocab, hidden)
    if shape.norm_before_fc:
        tensors["input_norm.weight"] = norm(taps_width)
    if shape.fc_norm:
        for i in range(shape.num_taps):
            tensors[f"fc_norm.{i}.weight"] = norm(shape.target_hidden)
    target_ids = torch.randperm(shape.vocab, generator=generator)[: shape.draft_vocab]
    tensors["d2t"] = target_ids - torch.arange(shape.draft_vocab)
    return tensors


def layer_linears(shape: HeadShape) -> dict[str, tuple[int, int]]:
    """(rows, columns) of every linear of every layer; the first reads two vectors."""
    q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    linears: dict[str, tuple[int, int]] = {}
    for i in range(shape.num_layers):
        width = shape.hidden if i else 2 * shape.hidden
        linears |= {
            f"layers.{i}.self_attn.q_proj": (q_width, width),
            f"layers.{i}.self_attn.k_proj": (kv_width, width),
            f"layers.{i}.self_attn.v_proj": (kv_width, width),
            f"layers.{i}.self_attn.o_proj": (shape.hidden, q_width),
            f"layers.{i}.mlp.gate_proj": (shape.inner, shape.hidden),
            f"layers.{i}.mlp.up_proj": (shape.inner, shape.hidden),
            f"layers.{i}.mlp.down_proj": (shape.hidden, shape.inner),
        }
    return linears


def target_mask(shape: HeadShape, tensors: Tensors) -> Tensor:
    """`t2d`: which target ids have a draft id."""
    mask = torch.zeros(shape.vocab, dtype=torch.bool)
    mask[torch.arange(shape.draft_vocab) + tensors["d2t"]] = True
    return mask


def layer_config(shape: HeadShape) -> dict[str, Any]:
    """What every layout says about the decoder layers."""
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": shape.num_layers,
        "vocab_size": shape.vocab,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_theta": shape.rope_theta,
    }


def speculators_config(shape: HeadShape, taps: list[int] | None) -> dict[str, Any]:
    """vLLM speculators: a nested layer, the options at the top."""
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5.0",
        "transformer_layer_config": layer_config(shape),
        "draft_vocab_size": shape.draft_vocab,
        "target_hidden_size": shape.target_hidden,
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.norm_before_fc,
        "fc_norm": shape.fc_norm,
        "norm_output": shape.norm_output,
        "embed_requires_grad": False,
        "eagle_aux_hidden_state_layer_ids": taps,
        "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "any", "architectures": ["Any"]},
        },
    }


def safeailab_config(shape: HeadShape, **changes: Any) -> dict[str, Any]:
    """SafeAILab, and SpecForge like it: everything flat."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer_config(shape),
        "draft_vocab_size": shape.draft_vocab,
        "target_hidden_size": shape.target_hidden,
        "tie_word_embeddings": False,
    }
    return config | changes


def write_head(
    directory: Path, tensors: Tensors, config: dict[str, Any], *, pickled: bool = False
) -> Path:
    """Put a head on disk; `None` values are left out of the config."""
    directory.mkdir(parents=True, exist_ok=True)
    stated = {key: value for key, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(stated))
    if pickled:
        torch.save(tensors, directory / "pytorch_model.bin")
    else:
        save_file({n: t.contiguous() for n, t in tensors.items()}, directory / "model.safetensors")
    return directory


def write_speculators(
    directory: Path, shape: HeadShape, taps: list[int] | None = None, **changes: Any
) -> Path:
    config = speculators_config(shape, taps or [0, 1, 3]) | changes
    tensors = head_tensors(shape)
    return write_head(directory, tensors | {"t2d": target_mask(shape, tensors)}, config)
