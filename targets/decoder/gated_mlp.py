"""The gated MLP of most decoders."""

from torch import Tensor, nn

from eagle_aot.targets.decoder.shared_input import SharedInput
from eagle_aot.targets.int4 import Int4Weight, PackedGatedInt4
from eagle_aot.triton_kernels.int4_gemm import GATED_ROWS, activate


class GatedMLP(SharedInput):
    """`down(act(gate(x)) * up(x))`; `activation` is "gelu_tanh" or "silu"."""

    sharers = ("gate_proj", "up_proj")

    def __init__(
        self, gate_proj: nn.Linear, up_proj: nn.Linear, down_proj: nn.Linear, activation: str
    ) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = gate_proj, up_proj, down_proj
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """`x` [1, T, H] -> [1, T, H]."""
        if self.fused is not None:
            return self.down_proj(self.fused(x))
        gate, up = self.project(x)
        return self.down_proj(activate(gate, self.activation) * up)

    def _fit(self, weights: list[Int4Weight]) -> bool:
        return super()._fit(weights) and weights[0].shape[0] % GATED_ROWS == 0

    def _packed(self, weights: list[Int4Weight], multiprocessors: int) -> nn.Module:
        gate, up = weights
        return PackedGatedInt4(gate, up, self.activation, multiprocessors)
