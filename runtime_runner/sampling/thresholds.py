"""Thresholds that cut a row of logits, with the same bits on any device and next to any other rows.

Counts and weights of tokens are integers, whose sums are exact in any order. Every logit that is at
least as large as the threshold is kept: equal logits are kept or cut together.
"""

import math

import torch
from torch import Tensor

CANDIDATES = 1024
"""How many of the largest logits are searched for a threshold first."""
LOWEST = -(2**31)
SCALE_BITS = 40
"""The largest token's weight is 2 ** SCALE_BITS: the sum of 2 ** 18 of them fits 64 bits."""
LOG2E = math.log2(math.e)
EXP2 = tuple(math.log(2) ** n / math.factorial(n) for n in range(9))


def order_of(values: Tensor) -> Tensor:
    """Map float32 [...] without NaN to int32 [...] in the same order."""
    bits = (values + 0.0).view(torch.int32)  # -0 becomes 0
    return bits ^ (bits >> 31 & 0x7FFFFFFF)


def weights_of(values: Tensor) -> Tensor:
    """Return the probabilities of each row's logits float32 [..., V] as int64 [..., V].

    exp is computed by operations that round alike everywhere.
    """
    exponent = (values - values.amax(dim=-1, keepdim=True)).mul_(LOG2E)
    exponent.clamp_(min=-SCALE_BITS - 2.0)
    floor = exponent.floor()
    rest = exponent - floor
    power = torch.full_like(rest, EXP2[-1])
    for factor in EXP2[-2::-1]:
        power.mul_(rest).add_(factor)
    scale = (floor.int() + (SCALE_BITS + 127)) << 23
    return power.mul_(scale.view(torch.float32)).long()


def threshold(order: Tensor, weights: Tensor, goal: Tensor, is_cut: Tensor) -> Tensor:
    """Return the largest order such that the weights of all that are not below it reach a goal.

    `order` int32 [R, V]; `weights` int64 [R, V]; `goal` int64 [R], from 1 to the row's sum;
    `is_cut` bool [R]. Returns int32 [R, 1], the lowest number for rows that are not cut.
    """
    thresholds = torch.full((len(order), 1), LOWEST, dtype=torch.int32)
    for row in is_cut.nonzero().flatten().tolist():
        thresholds[row] = _of_row(order[row], weights[row], goal[row])
    return thresholds


def _of_row(order: Tensor, weights: Tensor, goal: Tensor) -> Tensor:
    """Return one row's threshold. All of the row is sorted only if its largest do not reach the
    goal."""
    for count in (min(CANDIDATES, len(order)), len(order)):
        largest, columns = order.topk(count)
        reached = weights[columns].cumsum(0) >= goal
        if reached[-1]:
            break
    return largest[reached.int().argmax()]
