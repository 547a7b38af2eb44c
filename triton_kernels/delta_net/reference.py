"""What is around the rule of a gated delta net in eager PyTorch: the reference and the CPU path."""

import torch
from torch import Tensor
from torch.nn import functional as F

UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys, which are made unit vectors."""


def inputs_reference(
    parts: Tensor,
    taps_weight: Tensor,
    dt_bias: Tensor,
    a_log: Tensor,
    inputs: Tensor,
    terms: Tensor,
    row_slots: Tensor,
    tap_slots: Tensor,
    exist: Tensor,
    sources: Tensor | None,
    targets: Tensor | None,
    key_dim: int,
) -> tuple[Tensor, Tensor]:
    """Do what `op.delta_net_inputs` does: [R, keys] and [R, W]."""
    channels, _, taps = taps_weight.shape
    heads = a_log.shape[0]
    values = parts.shape[-1] - channels - 2 * heads
    keys = (channels - values) // 2
    product = parts.sum(0)[0].to(taps_weight.dtype).float()
    mixed, _, b, a = product.split((channels, values, heads, heads), dim=-1)
    _store(inputs, mixed, row_slots, sources, targets)
    gathered = inputs.index_select(0, tap_slots).view(-1, taps, channels)
    gathered = torch.where(exist.view(-1, taps, 1), gathered, 0.0)
    weights = taps_weight.float()
    total = gathered[:, 0] * weights[:, 0, 0]
    for tap in range(1, taps):
        total = total + gathered[:, tap] * weights[:, 0, tap]
    queries, new = rule_inputs(F.silu(total), a, b, dt_bias, a_log, (keys, key_dim))
    _store(terms, new, row_slots, sources, targets)
    return queries, new


def _store(
    buffer: Tensor, new: Tensor, slots: Tensor, sources: Tensor | None, targets: Tensor | None
) -> None:
    if sources is not None and targets is not None:
        moved = buffer.index_select(0, sources.flatten())
        buffer.index_copy_(0, targets.flatten(), moved)
    buffer.index_copy_(0, slots, new)


def rule_inputs(
    mixed: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor, a_log: Tensor, sizes: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return the queries [R, keys] of rows, and what states take in of them, [R, W]: keys, values,
    decays and rates.

    `mixed` float32 [R, channels] are queries, keys and values after the convolution; `a` and `b`
    float32 [R, heads] and the parameters [heads] give decays and rates (transformers'
    `Qwen3_5GatedDeltaNet`). `sizes` are the elements of a row's keys, and of one key.
    """
    keys, key_dim = sizes
    decays = torch.exp(-torch.exp(a_log.float()) * F.softplus(a + dt_bias.float()))
    queries = _units(mixed[:, :keys], key_dim) * key_dim**-0.5
    unit_keys, values = _units(mixed[:, keys : 2 * keys], key_dim), mixed[:, 2 * keys :]
    return queries, torch.cat((unit_keys, values, decays, torch.sigmoid(b)), dim=-1)


def _units(x: Tensor, key_dim: int) -> Tensor:
    """Give each head's vector of `x` [R, keys] the length 1; same shape."""
    heads = x.unflatten(-1, (-1, key_dim))
    squares = (heads * heads).sum(dim=-1, keepdim=True)
    return (heads * torch.rsqrt(squares + UNIT_EPS)).flatten(1)


def output_reference(read: Tensor, parts: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Do what `op.delta_net_output` does: [1, R, values]."""
    heads, value_dim = read.shape[1:]
    values = heads * value_dim
    gates = parts.sum(0)[0, :, -2 * heads - values : -2 * heads].to(weight.dtype).float()
    normed = read * torch.rsqrt((read * read).mean(dim=-1, keepdim=True) + eps) * weight.float()
    return (normed.flatten(1) * F.silu(gates)).to(weight.dtype).unsqueeze(0)
