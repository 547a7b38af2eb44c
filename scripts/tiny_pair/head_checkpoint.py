"""Writes a head in the layout of vLLM's speculators: config.json and sixteen bf16 tensors.

Besides the head's parameters, by their own names, there are `d2t` int64 [Vd], the offset from a
draft id to its target id, and `t2d` bool [V], which target ids can be drafted.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedConfig

from eagle_aot.export.drafters.eagle3.model import Eagle3Draft

SPECULATORS_VERSION = "0.3.0"


def save_head(draft: Eagle3Draft, verifier: PreTrainedConfig, chain_len: int, folder: Path) -> None:
    """Writes the head; `verifier` is its target's config, `chain_len` the default chain length."""
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(draft, verifier, chain_len)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(_tensors(draft), folder / "model.safetensors", metadata={"format": "pt"})


def _tensors(draft: Eagle3Draft) -> dict[str, Tensor]:
    tensors = {
        name: parameter.detach().to("cpu", torch.bfloat16)
        for name, parameter in draft.named_parameters()
    }
    target_ids = draft.target_ids.cpu()
    tensors["d2t"] = target_ids - torch.arange(len(target_ids))
    tensors["t2d"] = torch.zeros(draft.config.vocab_size, dtype=torch.bool)
    tensors["t2d"][target_ids] = True
    return tensors


def _config(draft: Eagle3Draft, verifier: PreTrainedConfig, chain_len: int) -> dict[str, Any]:
    config = draft.config
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "norm_output": config.norm_output,
        "eagle_aux_hidden_state_layer_ids": list(config.tap_layers),
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "transformer_layer_config": _layer_config(draft, verifier),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": chain_len}],
            "verifier": {"name_or_path": "gemma4-tiny", "architectures": verifier.architectures},
        },
    }


def _layer_config(draft: Eagle3Draft, verifier: PreTrainedConfig) -> dict[str, Any]:
    config = draft.config
    return {
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": len(draft.layers),
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": config.hidden_act,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "max_position_embeddings": verifier.max_position_embeddings,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
    }
