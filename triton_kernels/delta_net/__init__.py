"""What a gated delta net computes around its rule, for the rows of a step."""

from eagle_aot.triton_kernels.delta_net.op import delta_net_inputs, delta_net_output
from eagle_aot.triton_kernels.delta_net.reference import rule_inputs

__all__ = ["delta_net_inputs", "delta_net_output", "rule_inputs"]
