"""Qwen3.5 targets with an MTP layer of random weights, and its results by transformers' modules."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5RMSNorm,
    Qwen3_5TextRotaryEmbedding,
)

from support.heads.files import Tensors
from support.heads.reference_trees import ReferenceText


class ReferenceMtp(nn.Module):
    """vLLM's wiring of transformers' modules, without a cache."""

    def __init__(self, model: Qwen3_5ForCausalLM) -> None:
        super().__init__()
        config = model.config
        full = config.layer_types.index("full_attention")
        norm = Qwen3_5RMSNorm, (config.hidden_size, config.rms_norm_eps)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            norm[0](*norm[1]) for _ in range(3)
        )
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, full)])
        self.rotary = Qwen3_5TextRotaryEmbedding(config)
        self.tables = (model.get_input_embeddings(), model.get_output_embeddings())

    @torch.no_grad()
    def forward(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Map tokens int64 [S] and states [S, H] to logits [S, V] and states [S, H]."""
        states = self.states(tokens.unsqueeze(0), states.unsqueeze(0))[0]
        return self.tables[1](states), states

    def states(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Map tokens int64 [B, S] and states [B, S, H] to states [B, S, H]."""
        embedding = self.tables[0](tokens).detach()
        halves = self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(states)
        stream = self.fc(torch.cat(halves, dim=-1))
        slots = torch.arange(tokens.shape[1]).unsqueeze(0)
        mask = torch.full((slots.shape[1],) * 2, float("-inf"), dtype=stream.dtype).triu(1)
        stream = self.layers[0](
            stream,
            position_embeddings=self.rotary(stream, slots),
            attention_mask=mask[None, None],
            position_ids=slots,
        )
        normed: Tensor = self.norm(stream)
        return normed


def random_mtp(model: Qwen3_5ForCausalLM, seed: int = 1) -> ReferenceMtp:
    """A layer whose norms all matter."""
    torch.manual_seed(seed)
    layer = ReferenceMtp(model)
    with torch.no_grad():
        for tensor in layer.parameters():
            if tensor.ndim == 1:
                tensor.uniform_(-0.5, 0.5)
            else:
                tensor.normal_(std=tensor.shape[1] ** -0.5)
    return layer.eval()


def save_mtp(
    directory: Path, model: Qwen3_5ForCausalLM, layer: ReferenceMtp, prefix: str = "mtp."
) -> Path:
    """Write a target with its layer as the publisher does."""
    model.save_pretrained(directory)
    path = directory / "model.safetensors"
    stored = {f"{prefix}{name}": tensor for name, tensor in mtp_tensors(layer).items()}
    save_file(load_file(path) | stored, path)
    config = json.loads((directory / "config.json").read_text())
    config |= {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def mtp_tensors(layer: ReferenceMtp) -> Tensors:
    """The layer's own tensors, not the target's tables."""
    return {
        name: tensor.clone()
        for name, tensor in layer.state_dict().items()
        if not name.startswith("tables.")
    }


@dataclass
class MtpText(ReferenceText):
    """A text that an MTP layer drafts; all slots are computed again for each draft."""

    model: Any
    head: Any

    def fused(self) -> Tensor:
        """The states after the target's final norm."""
        with torch.no_grad():
            found: Tensor = self.model.model(torch.tensor([self.text])).last_hidden_state
        return found[0]

    def greedy(self, text: list[int]) -> int:
        with torch.no_grad():
            return int(self.model(torch.tensor([text])).logits[0, -1].argmax())

    def target_ids(self, count: int) -> Tensor:
        return torch.arange(count)

    def run(self, following: list[int], features: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.head(torch.tensor(following[: len(features)]), features)
        return found
