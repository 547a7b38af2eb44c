"""What Hugging Face checkpoints call the tensors of a GGUF file."""

from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map

LLAMA = "llama"
ARCHITECTURES = ("gemma4", LLAMA, "qwen3")
"""Those whose conversion is known: others also shift norms or reorder rows."""

TOP = ("model.embed_tokens", "model.norm", "lm_head")
PER_LAYER = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("self_attn.q_norm", "self_attn.k_norm"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    *("input_layernorm", "post_attention_layernorm"),
    *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "layer_scalar",
)
BARE = ".layer_scalar"
"""The end of a name that has no `.weight` behind it in a Hugging Face checkpoint."""


def hugging_face_names(architecture: str, num_layers: int) -> dict[str, str]:
    """Hugging Face's name by GGUF's, of the tensors that an architecture of ours may have."""
    names = get_tensor_name_map(_arch(architecture), num_layers)
    modules = [*TOP]
    modules += [f"model.layers.{i}.{module}" for i in range(num_layers) for module in PER_LAYER]
    known = {module: names.get_name(module) for module in modules}
    return {
        f"{stored}.weight": module if module.endswith(BARE) else f"{module}.weight"
        for module, stored in known.items()
        if stored is not None
    }


def _arch(name: str) -> MODEL_ARCH:
    return next(arch for arch, spelt in MODEL_ARCH_NAMES.items() if spelt == name)
