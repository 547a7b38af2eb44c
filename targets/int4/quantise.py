"""Dense weights to INT4 on load: round to nearest, or half-quadratic.

Both are asymmetric: a group's scale spreads the codes 0..15 over its range, which is made to
include zero, so that a zero point lies within the codes.

RTN rounds, and its zero points are codes. HQQ moves the zero point so as to make small the p-norm
(p < 1) of what is left, which forgives the few weights that fit badly: in turn, the error's
shrunken part is set aside and the zero point is the mean of what remains.
Source: Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (2023).
Unlike there, errors are counted in steps of the grid, so that the result does not depend on a
weight's magnitude, and each group keeps the best zero point that it had, RTN's among them.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from eagle_aot.common.errors import SettingError
from eagle_aot.common.threads import torch_threads
from eagle_aot.targets.int4.nibbles import bytes_of_codes
from eagle_aot.targets.int4.weight import Int4Weight

RTN, HQQ = "rtn", "hqq"
MAX_CODE = 15
SMALLEST_SPAN = 1e-30
"""Of a group that is not all zero: below it a scale would be no normal number."""
ROWS_AT_ONCE = 64
"""So few that what is computed of them stays in a core's cache, and takes no memory to speak of."""

HQQ_STEPS = 10
"""Half of the published number: the other half moves the error by one part in a thousand."""
HQQ_P = 0.7
HQQ_BETA = 10.0
HQQ_KAPPA = 1.01


@dataclass(frozen=True, slots=True)
class Scheme:
    """How to quantise: columns that share a scale, and the method."""

    group_size: int
    method: str = RTN


SCHEMES = {
    f"int4-g{group}{suffix}": Scheme(group, method)
    for suffix, method in (("", RTN), ("-hqq", HQQ))
    for group in (32, 64, 128)
}
"""What `--quantize` takes."""


def quantise(
    weight: Tensor, scheme: Scheme, dtype: torch.dtype, name: str = "a weight"
) -> Int4Weight:
    """`weight` [N, K] as INT4; scale and zero point are values of `dtype`, held in float32.

    Codes are chosen for the rounded scale and zero point, which are what will be multiplied with.
    Raises SettingError where K is not a whole number of groups.
    """
    if weight.shape[1] % scheme.group_size:
        raise SettingError(
            f"--quantize: {name} has {weight.shape[1]} columns, "
            f"no multiple of {scheme.group_size}: choose smaller groups"
        )
    rows, columns = weight.shape
    qdata = torch.empty(rows, columns // 2, dtype=torch.uint8)
    scale, zero = (torch.empty(columns // scheme.group_size, rows) for _ in range(2))

    def fill(part: slice) -> None:  # into place: pieces would leave holes in the heap
        found = _rows(weight[part].float(), scheme, dtype)
        qdata[part], scale.t()[part], zero.t()[part] = found

    fill_rows(weight, fill)
    return Int4Weight(qdata, scale, zero)


def fill_rows(weight: Tensor, fill: Callable[[slice], None]) -> None:
    """Have `fill` quantise `ROWS_AT_ONCE` rows of `weight` at a time, in several threads."""
    if isinstance(weight, FakeTensor):  # its mode is this thread's, and rows take no memory
        fill(slice(None))
        return
    pieces = [slice(at, at + ROWS_AT_ONCE) for at in range(0, len(weight), ROWS_AT_ONCE)]
    # A piece is so small that torch's own threads mostly wait for one another within it: 50 times
    # as long on a machine that has other work.
    with ThreadPoolExecutor(torch.get_num_threads()) as threads, torch_threads(1):
        list(threads.map(fill, pieces))


def _rows(rows: Tensor, scheme: Scheme, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """qdata [n, K / 2], scale and zero point [n, K / g] of n rows."""
    groups = rows.unflatten(1, (-1, scheme.group_size))
    low = groups.amin(-1, keepdim=True).clamp(max=0)
    span = groups.amax(-1, keepdim=True).clamp(min=0) - low
    scale = _rounded(torch.where(span > SMALLEST_SPAN, span / MAX_CODE, 1.0), dtype)
    steps = groups / scale
    zero = (-low / scale).round().clamp(0, MAX_CODE)
    if scheme.method == HQQ:
        zero = _half_quadratic(steps, zero, dtype)
    qdata = bytes_of_codes(_codes(steps, zero).to(torch.uint8).flatten(1))
    return qdata, scale.squeeze(-1), zero.squeeze(-1)


def _half_quadratic(steps: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """The zero point of each group with the least mean error among all that HQQ tries."""
    best, least, beta = zero, _error(steps, zero), HQQ_BETA
    for _ in range(HQQ_STEPS):
        codes = _codes(steps, zero)
        outliers = _shrunken(steps + zero - codes, beta)
        zero = _rounded((codes - steps + outliers).mean(-1, keepdim=True), dtype)
        zero = zero.clamp(0, MAX_CODE)
        error = _error(steps, zero)
        best, least = torch.where(error < least, zero, best), torch.minimum(error, least)
        beta *= HQQ_KAPPA
    return best


def _shrunken(error: Tensor, beta: float) -> Tensor:
    """The proximal operator of the p-norm: zero but for errors that are large."""
    size = error.abs()
    return error.sign() * (size - size.pow(HQQ_P - 1) / beta).clamp(min=0)


def _error(steps: Tensor, zero: Tensor) -> Tensor:
    return (_codes(steps, zero) - zero - steps).abs().mean(-1, keepdim=True)


def _codes(steps: Tensor, zero: Tensor) -> Tensor:
    return (steps + zero).round().clamp(0, MAX_CODE)


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype).float()
