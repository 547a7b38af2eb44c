"""Write and read a head in the layout of vLLM's speculators: config.json and model.safetensors.

Besides the head's parameters, by their own names, there are `d2t` int64 [Vd], the offset from a
draft id to its target id, and `t2d` bool [V], which target ids can be drafted. A P-EAGLE head has
`mask_hidden` [1, 1, num_taps * Ht] and names its mask token as `mask_token_id`. Linears may be
stored in fewer bits, as torchao flattens them; loading a head makes them dense again.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from executorch.extension.llm.export.quant import QuantConfig, quantize_weight
from torch import Tensor, nn
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

from eagle_aot.artifact import P_EAGLE
from eagle_aot.common.tensors import save_tensors
from eagle_aot.export.drafters.eagle3.load import COMPUTED, load_layout
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.reading.layout import read_layout
from eagle_aot.export.drafters.eagle3.reading.names import MASK_HIDDEN
from eagle_aot.export.drafters.registry import name_of_kind
from eagle_aot.lab.training.heads.draft import NOT_CACHED
from eagle_aot.lab.training.heads.learned_mask import LearnedMask
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint, read_config
from eagle_aot.targets.decoder.kv_cache import CacheSpec

SPECULATORS_VERSION = "0.3.0"
EMBEDDING = "embed_tokens.weight"
BF16 = "bf16"
QUANTS = {
    "int8": QuantConfig(bits=8, group_size=64, symmetric=True, method="min_max"),
    "int4": QuantConfig(bits=4, group_size=32, symmetric=False, method="min_max"),
}
FORMATS = (BF16, *QUANTS)
"""How the linears of a head are stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verifier:
    """What a head's config records about its target."""

    name: str
    architectures: list[str] | None
    max_position_embeddings: int

    @classmethod
    def read(cls, target_dir: Path, name: str) -> "Verifier":
        """Read it from the target's own config."""
        config = read_config(target_dir)
        text = config.section("text_config") if config.has("text_config") else config
        return cls(
            name=name,
            architectures=config.values.get("architectures"),
            max_position_embeddings=text.count("max_position_embeddings"),
        )


def save_head(
    draft: Eagle3Draft,
    verifier: Verifier,
    chain_len: int,
    folder: Path,
    *,
    head_format: str = BF16,
    with_embedding: bool = True,
) -> None:
    """Write the head; `chain_len` is its default chain length.

    A head without an embedding uses its target's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(draft, verifier, chain_len)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = _tensors(draft)
    if not with_embedding:
        del tensors[EMBEDDING]
    metadata = {"format": "pt"}
    if head_format in QUANTS:
        tensors, described = flatten_tensor_state_dict(
            tensors | _quantised(draft, QUANTS[head_format])
        )
        metadata |= described
    save_tensors(tensors, folder / "model.safetensors", metadata=metadata)


def read_head(folder: Path, target: TapTarget | None) -> Eagle3Draft:
    """Load a head of either kind that was written here; `target` as for `load_draft`."""
    checkpoint = Checkpoint(folder)
    layout = read_layout(checkpoint, None, parallel=name_of_kind(checkpoint) == P_EAGLE)
    return load_layout(layout, target, torch.float32, CacheSpec(NOT_CACHED, torch.float32))


def _quantised(draft: Eagle3Draft, config: QuantConfig) -> dict[str, Tensor]:
    """Return the quantised weights of linears whose columns are more than one whole group."""
    return {
        f"{name}.weight": quantize_weight(linear.weight.detach().to("cpu", torch.bfloat16), config)
        for name, linear in draft.named_modules()
        if isinstance(linear, nn.Linear)
        and linear.in_features % config.group_size == 0
        and linear.in_features > config.group_size
    }


def _tensors(draft: Eagle3Draft) -> dict[str, Tensor]:
    tensors = {
        name: parameter.detach().to("cpu", torch.bfloat16)
        for name, parameter in draft.named_parameters()
        if name not in COMPUTED
    }
    if draft.config.mask_token_id is not None:
        assert isinstance(draft, LearnedMask), "what has been loaded has no taps of its mask"
        tensors[MASK_HIDDEN] = tensors[MASK_HIDDEN].view(1, 1, -1)
    target_ids = draft.target_ids.cpu()
    tensors["d2t"] = target_ids - torch.arange(len(target_ids))
    tensors["t2d"] = torch.zeros(draft.config.vocab_size, dtype=torch.bool)
    tensors["t2d"][target_ids] = True
    return tensors


def _config(draft: Eagle3Draft, verifier: Verifier, chain_len: int) -> dict[str, Any]:
    config = draft.config
    parallel = config.mask_token_id is not None
    algorithm = "peagle" if parallel else "eagle3"
    return {
        "architectures": ["PEagleDraftModel" if parallel else "Eagle3DraftModel"],
        "speculators_model_type": algorithm,
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
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": chain_len}],
            "verifier": {"name_or_path": verifier.name, "architectures": verifier.architectures},
        },
        **({"mask_token_id": config.mask_token_id} if parallel else {}),
    }


def _layer_config(draft: Eagle3Draft, verifier: Verifier) -> dict[str, Any]:
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
        "rope_theta": config.rope.theta,
        "rope_scaling": None,
    }
