"""GGUF files, written by the `gguf` package; Q4_K, which it does not write, block by block."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, get_tensor_name_map, quantize
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from torch import Tensor
from transformers import PretrainedConfig
from transformers.convert_slow_tokenizer import bytes_to_unicode

from support.pre_norm_oracle import random_pre_norm

NORMAL, CONTROL = 1, 3
SIZE = 300  # tokens, enough for every byte
TEMPLATE = (
    "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)

GEMMA4_SCALES = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}
"""What llama.cpp calls them; the package has no names for them."""

Bytes = npt.NDArray[np.uint8]


class GgufModel:
    """Writes a GGUF file of one architecture."""

    def __init__(self, path: Path, architecture: str = "gemma4", layers: int = 1) -> None:
        self.writer = GGUFWriter(path, architecture)
        self.writer.add_block_count(layers)
        arch: MODEL_ARCH = next(a for a, n in MODEL_ARCH_NAMES.items() if n == architecture)
        self._names = get_tensor_name_map(arch, layers)

    def add(self, name: str, tensor: Tensor, kind: Type = Type.F32) -> None:
        """Add a tensor under its Hugging Face name, in a type that the package can write."""
        stored = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        if stored is None:
            layer, _, leaf = name.removeprefix("model.layers.").partition(".")
            stored = f"blk.{layer}.{GEMMA4_SCALES[leaf]}"
        elif not stored.endswith((".weight", ".bias")):
            stored = f"{stored}.weight"
        assert stored is not None, name
        self.add_bytes(stored, quantize(tensor.float().numpy(), kind), kind)

    def add_bytes(self, stored: str, data: npt.NDArray[np.generic], kind: Type) -> None:
        self.writer.add_tensor(stored, data, raw_dtype=kind)

    def write_geometry(self, config: PretrainedConfig) -> None:
        """Write the keys that llama.cpp's converter writes for a decoder."""
        writer = self.writer
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_vocab_size(config.vocab_size)

    def write_tokenizer(
        self, size: int, adds_bos: bool | None = False, template: str = TEMPLATE, pre: str = "gpt-2"
    ) -> None:
        """Write a byte-level vocabulary of `size` tokens, with <s> 0 and </s> 1."""
        words = ["<s>", "</s>", *sorted(bytes_to_unicode().values()), "th"][:size]
        words += [f"unused{i}" for i in range(size - len(words))]
        writer = self.writer
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(words)
        writer.add_token_types([CONTROL, CONTROL] + [NORMAL] * (size - 2))
        writer.add_token_merges(["t h"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_chat_template(template)
        if adds_bos is not None:
            writer.add_add_bos_token(adds_bos)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write_bare_llama(path: Path, tokenizer: bool = True) -> Path:
    """Write a small target: up and down in Q8_0, other linears in Q4_1, the table in F16."""
    model = random_pre_norm("llama", vocab_size=SIZE, hidden_size=64, intermediate_size=96)
    file = GgufModel(path, "llama", layers=model.config.num_hidden_layers)
    file.write_geometry(model.config)
    if tokenizer:
        file.write_tokenizer(SIZE)
    kinds = {"up_proj": Type.Q8_0, "down_proj": Type.Q8_0, "_proj": Type.Q4_1, "embed": Type.F16}
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":  # tied
            kind = next((kind for part, kind in kinds.items() if part in name), Type.F32)
            file.add(name, weight, kind)
    file.close()
    return path


def random_q4_k(rows: int, columns: int, seed: int = 0) -> Bytes:
    """Return blocks uint8 [rows, columns / 256 * 144] of random bytes with finite scales."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows, columns // 256, 144), dtype=np.uint8)
    scales = generator.uniform(0.001, 0.02, (rows, columns // 256, 2)).astype(np.float16)
    blocks[..., :4] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)
