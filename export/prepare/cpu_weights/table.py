"""A table of embeddings whose rows are INT8."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_aot.export.prepare.cpu_weights.codes import Codes, frozen


class Int8Table(nn.Module):
    """`nn.Embedding` over `Codes` with a scale for each row: rows that are read are made dense.

    An output table of the same values holds the same codes.
    """

    def __init__(self, weight: Codes) -> None:
        super().__init__()
        self.weight_codes, self.weight_scale = frozen(weight.codes), frozen(weight.scale)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids int64 [..., T] -> float32 [..., T, H]."""
        return F.embedding(tokens, self.weight_codes).to(torch.float32) * F.embedding(
            tokens, self.weight_scale
        )

    def eager(self) -> nn.Module:
        """The same with all rows made dense once."""
        return nn.Embedding.from_pretrained(Codes(self.weight_codes, self.weight_scale, 8).dense())
