"""The most likely tokens of a vocabulary and their log probabilities."""

from eagle_aot.triton_kernels.topk_logprobs.op import topk_logprobs, topk_logprobs_reference

__all__ = ["topk_logprobs", "topk_logprobs_reference"]
