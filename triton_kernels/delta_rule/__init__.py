"""The gated delta rule on states that are kept in place: rows of a step, and prompts."""

from eagle_aot.triton_kernels.delta_rule.op import delta_rule_prompt, delta_rule_step

__all__ = ["delta_rule_prompt", "delta_rule_step"]
