"""One head in the layout of every trainer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from support.heads.files import (
    HeadShape,
    Tensors,
    head_tensors,
    layer_config,
    safeailab_config,
    speculators_config,
    target_mask,
    write_head,
)

IDS = "eagle_aux_hidden_state_layer_ids"
OUTPUTS = [1, 3, 5]  # in a flat file: boundaries 2, 4, 6

Writer = Callable[[Path, HeadShape, Tensors], Path]


def tensors_of(shape: HeadShape, embedding: torch.Tensor) -> Tensors:
    """A head that embeds with `embedding` [V, H]."""
    return head_tensors(shape) | {"embed_tokens.weight": embedding.clone()}


def speculators(directory: Path, shape: HeadShape, tensors: Tensors) -> Path:
    mask = target_mask(shape, tensors)
    return write_head(directory, tensors | {"t2d": mask}, speculators_config(shape, [2, 4, 6]))


def safeailab(directory: Path, shape: HeadShape, tensors: Tensors) -> Path:
    """`pytorch_model.bin`, no key that names taps."""
    stored = midlayer(tensors) | {"t2d": target_mask(shape, tensors)}
    config = safeailab_config(shape, architectures=["LlamaForCausalLM"])
    return write_head(directory, stored, config, pickled=True)


def safeailab_shards(directory: Path, shape: HeadShape, tensors: Tensors) -> Path:
    """The same in two pickled shards."""
    stored = midlayer(tensors)
    write_head(directory, {}, safeailab_config(shape), pickled=True)
    (directory / "pytorch_model.bin").unlink()
    names = sorted(stored)
    files = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    shards = dict(zip(files, (names[::2], names[1::2]), strict=True))
    for file, members in shards.items():
        torch.save({name: stored[name] for name in members}, directory / file)
    weight_map = {name: file for file, members in shards.items() for name in members}
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (directory / "pytorch_model.bin.index.json").write_text(index)
    return directory


def specforge(directory: Path, shape: HeadShape, tensors: Tensors) -> Path:
    """SGLang's export: no embedding, layer outputs as ids, a `norm_output` of its own."""
    stored = without_embedding(midlayer(tensors)) | {"t2d": target_mask(shape, tensors)}
    nested = {IDS: OUTPUTS, "use_aux_hidden_state": True}
    config = safeailab_config(shape, eagle_config=nested, norm_output=True)
    return write_head(directory, stored, config)


def angelslim(directory: Path, shape: HeadShape, tensors: Tensors) -> Path:
    stored = without_embedding(midlayer(tensors)) | {"t2d": target_mask(shape, tensors)}
    return write_head(
        directory,
        stored,
        safeailab_config(
            shape,
            architectures=["Eagle3LlamaForCausalLM"],
            target_model_type="qwen3",
            tie_word_embeddings=True,
            aux_hidden_states_layer_ids=OUTPUTS,
        ),
    )


def modelopt_config(shape: HeadShape, **changes: Any) -> dict[str, Any]:
    """What the Hugging Face exporter's template holds."""
    nested = {
        IDS: OUTPUTS,
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": None,
    }
    return safeailab_config(shape, eagle_config=nested) | changes


def modelopt(directory: Path, shape: HeadShape, tensors: Tensors) -> Path:
    """Neither `t2d` nor an embedding."""
    return write_head(directory, without_embedding(tensors), modelopt_config(shape))


def megatron(directory: Path, shape: HeadShape, tensors: Tensors) -> Path:
    """ModelOpt's Megatron exporter: deeper layers' first norm has the fused one's name."""
    deep = shape.num_layers > 1
    stored = {
        (n.replace("layers.", "midlayer.") if deep else n.replace("layers.0.", "midlayer.")): t
        for n, t in without_embedding(tensors).items()
    }
    for i in range(1, shape.num_layers):
        norm = stored.pop(f"midlayer.{i}.input_layernorm.weight")
        stored[f"midlayer.{i}.hidden_norm.weight"] = norm
    name = "LlamaForCausalLMEagle3Deep" if deep else "LlamaForCausalLMEagle3"
    return write_head(directory, stored, modelopt_config(shape, architectures=[name]))


def sglang_additional(directory: Path, shape: HeadShape, tensors: Tensors) -> Path:
    """Older SGLang's names of deeper layers."""
    stored: Tensors = {}
    for name, tensor in midlayer(tensors).items():
        for i in range(1, shape.num_layers):
            name = name.replace(f"layers.{i}.input_layernorm", f"layers.{i}.hidden_norm")
            name = name.replace(f"layers.{i}.", f"additional_layers.{i - 1}.")
        stored[name] = tensor
    return write_head(directory, stored, safeailab_config(shape))


def nemo(directory: Path, shape: HeadShape, tensors: Tensors) -> Path:
    """Everything but the output table and the maps below `model.`; the target's layer count."""
    top = ("lm_head.weight", "d2t")
    stored = {n if n in top else f"model.{n}": t for n, t in tensors.items()}
    stored["t2d"] = target_mask(shape, tensors)
    config = safeailab_config(
        shape, architectures=["LlamaEagle3DraftModel"], num_hidden_layers=42,
        eagle_config={IDS: OUTPUTS},
    )  # fmt: skip
    return write_head(directory, stored, config)


def converted(directory: Path, shape: HeadShape, tensors: Tensors) -> Path:
    """ModelOpt's tensors in a speculators config, as its older converter wrote them."""
    config = speculators_config(shape, [2, 4, 6]) | {"architectures": ["Pair"]}
    return write_head(directory, without_embedding(midlayer(tensors)), config)


def wrapped(directory: Path, shape: HeadShape, tensors: Tensors) -> Path:
    """Saved from inside a training wrapper; the layer's config only."""
    stored = {n if n == "d2t" else f"draft_model.{n}": t for n, t in tensors.items()}
    config = layer_config(shape) | {"target_hidden_size": shape.target_hidden}
    return write_head(directory, stored, config)


def midlayer(tensors: Tensors) -> Tensors:
    """SafeAILab's names."""
    return {n.replace("layers.0.", "midlayer."): t for n, t in tensors.items()}


def without_embedding(tensors: Tensors) -> Tensors:
    return {n: t for n, t in tensors.items() if n != "embed_tokens.weight"}


TRAINERS: dict[Writer, str] = {
    speculators: "vLLM speculators",
    safeailab: "SafeAILab",
    safeailab_shards: "SpecForge / SGLang",  # an architecture of that name
    specforge: "SpecForge / SGLang",
    angelslim: "AngelSlim",
    modelopt: "NVIDIA ModelOpt",
    megatron: "NVIDIA ModelOpt",
    nemo: "NeMo Automodel",
    converted: "vLLM speculators",
    wrapped: "SafeAILab",
}
"""Every layout, and whose it is taken for."""

DEEP = (speculators, modelopt, megatron, sglang_additional)
"""Layouts in which heads of several layers come."""
