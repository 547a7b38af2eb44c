"""What llama.cpp's converter changes in a Qwen3.5, architecture `qwen35`, and how to undo it.

Value heads of a gated delta net are stored with the first of every key head's group first, then the
second ones; checkpoints have the heads of a group side by side. Norms but those of delta nets are
stored with 1 added, `ssm_a` is -exp(A_log), and the convolution lacks a dimension of size 1.
The MTP layer is the block after the last layer. Source: llama.cpp `conversion/qwen.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

DELTA_NET = ".linear_attn."
MODULES = tuple(
    f"linear_attn.{name}"
    for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "conv1d", "norm", "out_proj")
)
WITHOUT_WEIGHT = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}
"""Tensors of a layer whose names in checkpoints do not end in `.weight`."""
OF_MTP = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head_norm": "norm",
}
"""What an MTP layer has in addition to a decoder layer."""
AFTER_KEYS = "in_proj_qkv.weight", "conv1d.weight"
"""Rows of queries, then of keys, then of values."""
BY_VALUE, BY_HEAD = ("in_proj_z.weight",), ("in_proj_b.weight", "in_proj_a.weight")
SCALARS = "A_log", "dt_bias"
COLUMNS, CONVOLUTION = "out_proj.weight", "conv1d.weight"
LOGARITHM = "A_log"
SHIFTED = "norm.weight", "_norm_embedding.weight", "_norm_hidden.weight"
NOT_SHIFTED = f"{DELTA_NET}norm.weight"


def other_names(layers: int) -> Iterator[tuple[str, str]]:
    """Yield the stored names that the `gguf` package does not map, of a model of so many layers and
    its MTP layer, with those in checkpoints."""
    for layer in range(layers):
        for stored, name in WITHOUT_WEIGHT.items():
            yield f"blk.{layer}.{stored}", f"model.layers.{layer}.{name}"
    for stored, name in OF_MTP.items():
        yield f"blk.{layers}.nextn.{stored}.weight", f"mtp.{name}.weight"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaNetLayout:
    """How the tensors of delta nets are stored, by the names of Hugging Face checkpoints. Sizes are
    those of `StateSizes`."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int

    @property
    def stored_heads(self) -> Tensor:
        """The stored value head of each head of a checkpoint, int64 [heads]."""
        return torch.arange(self.heads).view(-1, self.key_heads).t().flatten()

    def row_order(self, name: str) -> Tensor | None:
        """Return the stored row of each row of a tensor, int64 [N]; None if they are in order."""
        leaf = _leaf(name)
        if leaf in BY_HEAD or leaf in SCALARS:
            return self.stored_heads
        if leaf in BY_VALUE:
            return _of_each(self.stored_heads, self.value_dim)
        if leaf not in AFTER_KEYS:
            return None
        before = 2 * self.key_heads * self.key_dim
        values = before + _of_each(self.stored_heads, self.value_dim)
        return torch.cat((torch.arange(before), values))

    def column_order(self, name: str, size: int = 1) -> Tensor | None:
        """Return the stored group of each group of `size` columns, int64 [K / size]; None if they
        are in order."""
        is_ordered = _leaf(name) != COLUMNS
        return None if is_ordered else _of_each(self.stored_heads, self.value_dim // size)

    def keeps_groups(self, name: str, size: int) -> bool:
        """Whether each `size` columns stay together."""
        return _leaf(name) != COLUMNS or self.value_dim % size == 0

    def values(self, name: str, stored: Tensor) -> Tensor:
        """Return what a checkpoint has in the place of a stored tensor [N, ...]."""
        leaf = _leaf(name)
        if leaf == LOGARITHM:
            return torch.log(-stored.float())  # NaN, which the loader refuses, if it is none
        if leaf == CONVOLUTION:
            return stored.unsqueeze(1)
        is_shifted = name.endswith(SHIFTED) and not name.endswith(NOT_SHIFTED)
        return stored.float() - 1 if is_shifted else stored

    def shape(self, name: str, stored: torch.Size) -> torch.Size:
        """Return the shape that a stored one has in checkpoints."""
        is_convolution = _leaf(name) == CONVOLUTION
        return torch.Size((stored[0], 1, *stored[1:])) if is_convolution else stored


def _leaf(name: str) -> str:
    """Return the name of a tensor within its delta net; empty for one of other modules."""
    return name.partition(DELTA_NET)[2]


def _of_each(heads: Tensor, size: int) -> Tensor:
    """Return the numbers of all elements of `heads` int64 [N] of a size: int64 [N * size]."""
    return (heads.unsqueeze(1) * size + torch.arange(size)).flatten()
