"""Random Gemma 4 checkpoints, and what transformers computes from them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from eagle_aot.targets import TapTarget

VOCAB = 96
SLIDING, FULL = "sliding_attention", "full_attention"
GEOMETRY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "layer_types": [SLIDING, FULL, SLIDING, FULL],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 8,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "tie_word_embeddings": True,
}

SCALES = ("layer_scalar", "router.scale", "per_expert_scale")
EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}


def random_gemma(seed: int = 0, **changes: Any) -> Gemma4ForCausalLM:
    """Return a float32 model in which every norm weight and layer scalar matters."""
    torch.manual_seed(seed)
    geometry = GEOMETRY | changes
    config = Gemma4TextConfig(
        num_hidden_layers=len(geometry["layer_types"]),
        attn_implementation="eager",
        **{key: list(v) if isinstance(v, list) else v for key, v in geometry.items()},
    )
    model = Gemma4ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name or name.endswith(SCALES):
                tensor.uniform_(0.5, 1.5)
            elif ".experts." in name or name.endswith("router.proj.weight"):
                tensor.normal_(std=tensor.shape[-1] ** -0.5)
            elif name.endswith(("_proj.weight", "lm_head.weight")):
                tensor.normal_(std=tensor.shape[1] ** -0.5)
            elif name.endswith("embed_tokens.weight"):
                tensor.normal_(
                    std=tensor.shape[1] ** -0.5 if geometry["tie_word_embeddings"] else 1
                )
    return model


def save_text_layout(model: Gemma4ForCausalLM, directory: Path) -> Path:
    """Save as transformers does: `model.` names, one table of dims per layer."""
    model.save_pretrained(directory)
    return directory


def save_multimodal_layout(model: Gemma4ForCausalLM, directory: Path, **changes: Any) -> Path:
    """Save as Google publishes it: `model.language_model.` names, `text_config`, global_ keys."""
    model.save_pretrained(directory)
    saved = json.loads((directory / "config.json").read_text())
    geometry = GEOMETRY | changes
    text = {key: v for key, v in saved.items() if key != "per_layer_config"}
    text |= {key: geometry[key] for key in ("global_head_dim", "num_global_key_value_heads")}
    write_config(directory, {"model_type": "gemma4", "text_config": text})
    tensors = load_file(directory / "model.safetensors")
    renamed = {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}
    renamed["model.vision_tower.patch.weight"] = torch.zeros(2, 2)
    save_file(renamed, directory / "model.safetensors")
    return directory


def write_config(directory: Path, config: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))


def random_tokens(count: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    """Return int64 [1, count]."""
    return torch.randint(0, vocab, (1, count), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def oracle_states(model: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [T, V] and the residual stream at every boundary [L + 1, T, H], uncached."""
    streams: list[Tensor] = []

    def record(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        streams.append(output[0] if isinstance(output, tuple) else output)

    modules = [model.model.embed_tokens, *model.model.layers]
    handles = [module.register_forward_hook(record) for module in modules]
    logits = model(input_ids=tokens, use_cache=False).logits[0]
    for handle in handles:
        handle.remove()
    return logits, torch.stack([stream.reshape(tokens.shape[1], -1) for stream in streams])


@torch.no_grad()
def run_in_chunks(
    target: TapTarget, tokens: Tensor, sizes: list[int], start: int = 0
) -> tuple[Tensor, Tensor]:
    """Return logits [T, V] and taps [n_taps, T, H] of `tokens`, run in chunks of these sizes.

    The last size repeats until the tokens are used up.
    """
    logits: list[Tensor] = []
    taps: list[Tensor] = []
    done = 0
    while done < tokens.shape[1]:
        size = sizes[min(len(logits), len(sizes) - 1)]
        chunk = tokens[:, done : done + size]
        input_pos = torch.arange(start + done, start + done + chunk.shape[1])
        chunk_logits, chunk_taps = target.forward_logits_taps(chunk, input_pos)
        logits.append(chunk_logits[0])
        taps.append(chunk_taps[0])
        done += size
    joined = torch.cat(taps)
    return torch.cat(logits), joined.unflatten(-1, (-1, target.hidden_size)).transpose(0, 1)
