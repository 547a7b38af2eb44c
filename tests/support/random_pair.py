"""Small random pairs on disk: a target as transformers saves it, a SafeAILab head.

Its text means nothing and its logits lie close together, which is what a losslessness test wants.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from eagle_aot.targets import TARGETS

HIDDEN, LAYERS, WINDOW, VOCAB, DRAFT_VOCAB = 64, 3, 16, 1024, 256
TAP_LAYERS = [0, 1, 3]
MASK_TOKEN = 5


def write_random_pair(directory: Path, seed: int = 0, family: str = "gemma4") -> tuple[Path, Path]:
    """Write `directory`/target and `directory`/head; returns both. Qwen3's head is P-EAGLE's."""
    torch.manual_seed(seed)
    target_dir, head_dir = directory / "target", directory / "head"
    families = {"gemma4": gemma4, "qwen3": qwen3}
    model: PreTrainedModel = families[family]()
    model.to(torch.float32).save_pretrained(target_dir)
    add_tokenizer(target_dir)
    write_head(head_dir, parallel=family == "qwen3")
    return target_dir, head_dir


def qwen3() -> Qwen3ForCausalLM:
    """Three layers, of these the last with a window; scaled rotary frequencies, an output table."""
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2,
        rope_parameters=rope | {"original_max_position_embeddings": 64},
        tie_word_embeddings=False, eos_token_id=None,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def qwen3_5(**changes: Any) -> Qwen3_5ForCausalLM:
    """Two gated delta nets, and between them a layer that attends; all norms and decays matter."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "head_dim": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 32, "tie_word_embeddings": False, "eos_token_id": None,
    }  # fmt: skip
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(attn_implementation="eager", **sizes | changes))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.ndim == 1:
                tensor.uniform_(-0.5, 0.5)
            if name.endswith("linear_attn.norm.weight"):
                tensor.add_(1)
    return model.float().eval()


GEMMA4: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": LAYERS,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32,
    "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": WINDOW,
    "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0, "eos_token_id": None,
}  # fmt: skip
"""Three layers, of these the last without a window."""


def gemma4() -> Gemma4ForCausalLM:
    return Gemma4ForCausalLM(Gemma4TextConfig(vocab_size=VOCAB, **GEMMA4))


def add_tokenizer(directory: Path) -> None:
    """Write the shipped tokenizer without its EOS token, so that no text ends by itself."""
    tokenizer = TARGETS["gemma4-tiny"].target_dir
    assert tokenizer is not None
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copyfile(tokenizer / name, directory / name)
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text("{}")


def write_head(
    directory: Path,
    vocab: int = VOCAB,
    parallel: bool = False,
    taps: Sequence[int] = TAP_LAYERS,
    draft_vocab: int = DRAFT_VOCAB,
) -> None:
    """Random weights, unsorted draft vocabulary, no embedding of its own; a mask if `parallel`."""
    directory.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [*taps]},
    }
    config |= {"ptd_token_id": MASK_TOKEN} if parallel else {}
    (directory / "config.json").write_text(json.dumps(config))
    shapes = {
        "fc.weight": (HIDDEN, len(taps) * HIDDEN),
        "midlayer.self_attn.q_proj.weight": (HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": (HIDDEN // 2, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (HIDDEN // 2, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "midlayer.mlp.gate_proj.weight": (2 * HIDDEN, HIDDEN),
        "midlayer.mlp.up_proj.weight": (2 * HIDDEN, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, 2 * HIDDEN),
        "lm_head.weight": (draft_vocab, HIDDEN),
    }
    tensors = {name: torch.randn(shape) * shape[1] ** -0.5 for name, shape in shapes.items()}
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"midlayer.{norm}.weight"] = torch.ones(HIDDEN)
    tensors["norm.weight"] = torch.ones(HIDDEN)
    tensors["d2t"] = torch.randperm(vocab)[:draft_vocab] - torch.arange(draft_vocab)
    if parallel:
        tensors["mask_hidden"] = torch.randn(1, len(taps) * HIDDEN)
    save_file(tensors, directory / "model.safetensors")
