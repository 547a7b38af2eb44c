"""Where a row of logits is cut: the same bits on any device and beside any neighbours.

Numbers of tokens and their weights are whole, so that sums of them are exact in any order. What is
kept is all that is at least as large as a threshold: equals are kept or left out together.
"""

import math

import torch
from torch import Tensor

CANDIDATES = 1024
"""A threshold is looked for among so many of the largest first."""
LOWEST = -(2**31)
SCALE_BITS = 40
"""The largest token's weight is 2 ** SCALE_BITS: 2 ** 18 of them fit 64 bits."""
LOG2E = math.log2(math.e)
EXP2 = tuple(math.log(2) ** n / math.factorial(n) for n in range(9))


def order_of(values: Tensor) -> Tensor:
    """int32 that compare as float32 without NaN do."""
    bits = (values + 0.0).view(torch.int32)  # there is one zero
    return bits ^ (bits >> 31 & 0x7FFFFFFF)


def weights_of(values: Tensor) -> Tensor:
    """Probabilities of each row's logits float32 [R, V] as whole numbers, int64.

    exp is computed by operations that round alike everywhere.
    """
    below = (values - values.amax(dim=-1, keepdim=True)).mul_(LOG2E)
    below.clamp_(min=-SCALE_BITS - 2.0)
    floor = below.floor()
    rest = below - floor
    power = torch.full_like(rest, EXP2[-1])
    for factor in EXP2[-2::-1]:
        power.mul_(rest).add_(factor)
    exponent = (floor.int() + (SCALE_BITS + 127)) << 23
    return power.mul_(exponent.view(torch.float32)).long()


def threshold(order: Tensor, weights: Tensor, goal: Tensor, wanted: Tensor) -> Tensor:
    """The largest number such that the weights of all that are no smaller reach a goal.

    order int32 [R, V]; weights int64 [R, V]; goal int64 [R], from 1 to the row's sum; wanted bool
    [R]. Returns int32 [R, 1], the lowest of all for rows that want none.
    """
    found = torch.full((len(order), 1), LOWEST, dtype=torch.int32)
    for row in wanted.nonzero().flatten().tolist():
        found[row] = _sorted(order[row], weights[row], goal[row])
    return found


def _sorted(order: Tensor, weights: Tensor, goal: Tensor) -> Tensor:
    """Of one row: among its largest, or where those do not reach the goal among all."""
    for count in (min(CANDIDATES, len(order)), len(order)):
        largest, places = order.topk(count)
        reached = weights[places].cumsum(0) >= goal
        if reached[-1]:
            break
    return largest[reached.int().argmax()]
