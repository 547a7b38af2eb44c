"""DFlash heads beside their targets, and what they must compute, slowly."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from eagle_aot.export import Pair
from eagle_aot.export.drafters.dflash import kind
from eagle_aot.export.drafters.dflash.model import DFlashDraft
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.golden_cases import GOLDEN

CASE = GOLDEN / "dflash" / "qwen3_full"
SEQ_LEN = 256
HEADS, HEAD_DIM, EPS, THETA = 4, 16, 1e-6, 1e6


def dflash_pair(head: Path = CASE / "draft") -> tuple[Pair, TapTarget, DFlashDraft]:
    """The case's target with its head, or with one in another directory."""
    target = load_target(CASE / "target", SEQ_LEN)
    draft, _ = kind.load(
        Checkpoint(head), target, torch.float32, CacheSpec(SEQ_LEN, torch.float32), None
    )
    return Pair(target, draft), target, draft


def copied_head(directory: Path, **changes: Any) -> Path:
    """The case's head with another config; None removes a key."""
    head = shutil.copytree(CASE / "draft", directory / "head")
    config = json.loads((head / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not None}
    (head / "config.json").write_text(json.dumps(kept))
    return head


def as_speculators(directory: Path, draft_ids: list[int] | None = None) -> Path:
    """The same head as speculators stores it; with `draft_ids` one of so many tokens."""
    head = shutil.copytree(CASE / "draft", directory / "head")
    layer = json.loads((head / "config.json").read_text())
    own = layer.pop("dflash_config")
    config = {
        "speculators_model_type": "dflash",
        "architectures": ["DFlashDraftModel"],
        "block_size": layer.pop("block_size"),
        "mask_token_id": own["mask_token_id"],
        "aux_hidden_state_layer_ids": [i + 1 for i in own["target_layer_ids"]],
        "transformer_layer_config": layer,
    }
    if draft_ids is not None:
        config["draft_vocab_size"] = len(draft_ids)
        ids = torch.tensor(draft_ids)
        table = load_file(CASE / "target" / "model.safetensors")["lm_head.weight"]
        tensors = load_file(head / "model.safetensors")
        tensors["lm_head.weight"] = table[ids].contiguous()
        tensors["d2t"] = ids - torch.arange(len(ids))
        save_file(tensors, head / "model.safetensors")
    (head / "config.json").write_text(json.dumps(config))
    return head


class SlowHead:
    """The formulas in float64, with a mask of who sees whom: no cache, no operator."""

    def __init__(self, head: Path) -> None:
        self.tensors = {
            name: tensor.double() for name, tensor in load_file(head / "model.safetensors").items()
        }
        target = load_file(CASE / "target" / "model.safetensors")
        self.embedding = target["model.embed_tokens.weight"].double()
        self.table = target["lm_head.weight"].double()

    def logits(self, taps: Tensor, bonus: int, rows: int, masks: list[Tensor]) -> Tensor:
        """Return logits [rows - 1, V] of masks after a text of S slots, from taps [S, n * Ht].

        `masks` bool [rows, S + rows] of each layer are true where a row sees.
        """
        slots = len(taps)
        features = self._norm(taps.double() @ self.tensors["fc.weight"].T, "hidden_norm")
        ids = torch.full((rows,), 319)
        ids[0] = bonus
        stream = self.embedding[ids]
        for layer, mask in enumerate(masks):
            normed = self._norm(stream, f"layers.{layer}.input_layernorm")
            name = f"layers.{layer}.self_attn"
            q = self._heads(normed, f"{name}.q", slots)
            text, block = (
                self._heads(features, f"{name}.k", 0),
                self._heads(normed, f"{name}.k", slots),
            )
            keys = torch.cat((text, block), dim=1)
            both = torch.cat((features, normed)) @ self.tensors[f"{name}.v_proj.weight"].T
            values = both.unflatten(-1, (-1, HEAD_DIM)).transpose(0, 1)
            attended = F.scaled_dot_product_attention(
                q[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
            )[0]
            merged = attended.transpose(0, 1).flatten(1) @ self.tensors[f"{name}.o_proj.weight"].T
            stream = stream + merged
            normed = self._norm(stream, f"layers.{layer}.post_attention_layernorm")
            gate, up, down = (
                self.tensors[f"layers.{layer}.mlp.{part}_proj.weight"]
                for part in ("gate", "up", "down")
            )
            stream = stream + (F.silu(normed @ gate.T) * (normed @ up.T)) @ down.T
        return self._norm(stream[1:], "norm") @ self.table.T

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], EPS)

    def _heads(self, x: Tensor, name: str, first: int) -> Tensor:
        """Normalised and turned heads [heads, rows, D], whose first row is at position `first`."""
        heads = (x @ self.tensors[f"{name}_proj.weight"].T).unflatten(-1, (-1, HEAD_DIM))
        heads = self._norm(heads, f"{name}_norm").transpose(0, 1)
        frequency = THETA ** (-torch.arange(0, HEAD_DIM, 2).double() / HEAD_DIM)
        angle = torch.arange(first, first + len(x)).double().unsqueeze(1) * frequency
        cos, sin = angle.cos(), angle.sin()
        low, high = heads.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
