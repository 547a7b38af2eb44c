"""Symmetric INT4 in groups of 32, in training (fake) and on disk (compressed-tensors).

N output rows, K input columns, g columns per group, one bf16 scale each. What the forward pass
multiplies with during quantisation-aware training is exactly what the checkpoint will hold.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.utils import parametrize

GROUP_SIZE = 32
# The signed range is -8..7; staying within +-7 never clips the largest weight of a group.
LARGEST_CODE = 7
ZERO_CODE = 8
CODES_PER_WORD = 8

QUANTIZATION_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": GROUP_SIZE,
                "actorder": None,
                "dynamic": False,
                "observer": "minmax",
                "block_structure": None,
            },
        }
    },
}


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`weight` [N, K] -> codes int8 [N, K] in -7..7 and scales bf16 [N, K/g]."""
    groups = weight.float().unflatten(-1, (-1, GROUP_SIZE))
    # The floor keeps an all-zero group from dividing by zero.
    largest = groups.abs().amax(-1).clamp(min=1e-8)
    scale = (largest / LARGEST_CODE).to(torch.bfloat16)
    codes = (groups / scale.float().unsqueeze(-1)).round().clamp(-LARGEST_CODE, LARGEST_CODE)
    return codes.flatten(-2).to(torch.int8), scale


def dequantise(codes: Tensor, scale: Tensor) -> Tensor:
    """codes int8 [N, K], scales bf16 [N, K/g] -> weight float32 [N, K], exact products."""
    groups = codes.float().unflatten(-1, (-1, GROUP_SIZE))
    weight: Tensor = groups * scale.float().unsqueeze(-1)
    return weight.flatten(-2)


def pack(codes: Tensor) -> Tensor:
    """codes int8 [N, K] -> int32 [N, K/8]; element k in bits 4*(k%8) of word k//8, plus 8."""
    words = (codes.to(torch.int64) + ZERO_CODE).unflatten(-1, (-1, CODES_PER_WORD))
    shifts = 4 * torch.arange(CODES_PER_WORD, device=codes.device)
    # The sum is an unsigned 32-bit word; int32 holds the same bits.
    word = (words << shifts).sum(-1)
    return torch.where(word < 2**31, word, word - 2**32).to(torch.int32)


class _RoundWeight(torch.autograd.Function):
    """Rounds to INT4 and back; the gradient passes straight through."""

    @staticmethod
    def forward(ctx: FunctionCtx, weight: Tensor) -> Tensor:
        return dequantise(*quantise(weight)).to(weight.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> Tensor:
        return gradients[0]


class FakeInt4(nn.Module):
    """A parametrization: the module sees the quantised weight, the optimiser the master weight."""

    def forward(self, weight: Tensor) -> Tensor:
        rounded = _RoundWeight.apply(weight)
        assert isinstance(rounded, Tensor)
        return rounded


def quantised_linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The linears that are stored in INT4: all but the (tied) output layer."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name not in QUANTIZATION_CONFIG["ignore"]:
            yield name, module


def start_fake_quantisation(model: nn.Module) -> None:
    """From now on the linears multiply with quantised weights; the parameters stay the same."""
    for _, linear in list(quantised_linears(model)):
        parametrize.register_parametrization(linear, "weight", FakeInt4())


def stop_fake_quantisation(model: nn.Module) -> None:
    """Back to the master weights."""
    for _, linear in list(quantised_linears(model)):
        if parametrize.is_parametrized(linear):
            parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)


@torch.no_grad()
def quantise_model(model: nn.Module) -> dict[str, Tensor]:
    """Replaces every weight by the number that is stored, and returns the checkpoint's tensors.

    INT4 for the decoder's linears, bf16 for everything else. The output layer is tied and not
    stored.
    """
    tensors = {}
    linears = dict(quantised_linears(model))
    for name, linear in linears.items():
        codes, scale = quantise(linear.weight)
        linear.weight.copy_(dequantise(codes, scale))
        tensors[f"{name}.weight_packed"] = pack(codes).cpu()
        tensors[f"{name}.weight_scale"] = scale.cpu()
        tensors[f"{name}.weight_shape"] = torch.tensor(linear.weight.shape)
    for name, tensor in model.state_dict().items():
        module = name.rpartition(".")[0]
        if module not in linears and module not in QUANTIZATION_CONFIG["ignore"]:
            tensors[name] = tensor.to("cpu", torch.bfloat16, copy=True)
            tensor.copy_(tensors[name])
    return tensors
