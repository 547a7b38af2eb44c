"""Dense weights to INT4 on load: round to nearest (RTN) or half-quadratic (HQQ).

Both are asymmetric: a group's scale spreads the codes 0..15 over its range, which is extended to
include zero, so that the zero point lies within the codes.

RTN rounds, and its zero points are codes. HQQ moves the zero point to minimise the p-norm (p < 1)
of the error, which tolerates a few weights that fit badly. It alternates two steps: shrink the
error to find its outliers, then set the zero point to the mean of the rest.
Source: Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models" (2023).
Unlike there, errors are counted in steps of the grid, so that the result does not depend on the
magnitude of a weight, and each group uses the best zero point that it had, including RTN's.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from eagle_aot.common.errors import SettingError
from eagle_aot.common.threads import torch_threads
from eagle_aot.targets.int4.weight import Int4Weight, bytes_of_codes

RTN, HQQ = "rtn", "hqq"
MAX_CODE = 15
SMALLEST_SPAN = 1e-30
"""Smallest range of a group that counts as not all zero: below it a scale would be subnormal."""
ROWS_AT_ONCE = 64
"""Few enough that their intermediate results stay in a core's cache."""

HQQ_STEPS = 10
"""Half of the published number: the other half changes the error by one part in a thousand."""
HQQ_P = 0.7
HQQ_BETA = 10.0
HQQ_KAPPA = 1.01


@dataclass(frozen=True, slots=True)
class Scheme:
    """How to quantise: the number of columns that share a scale, and the method."""

    group_size: int
    method: str = RTN


SCHEMES = {
    f"int4-g{group}{suffix}": Scheme(group, method)
    for suffix, method in (("", RTN), ("-hqq", HQQ))
    for group in (32, 64, 128)
}
"""The values of `--quantize`."""


def quantise(
    weight: Tensor, scheme: Scheme, dtype: torch.dtype, name: str = "a weight"
) -> Int4Weight:
    """Quantise `weight` [N, K] to INT4.

    Scales and zero points are values of `dtype`, stored as float32; codes are chosen for these
    rounded values. Raises SettingError unless K is a whole number of groups.
    """
    if weight.shape[1] % scheme.group_size:
        raise SettingError(
            f"--quantize: {name} has {weight.shape[1]} columns, "
            f"not a multiple of {scheme.group_size}: choose smaller groups"
        )
    rows, columns = weight.shape
    qdata = torch.empty(rows, columns // 2, dtype=torch.uint8)
    scale, zero = (torch.empty(columns // scheme.group_size, rows) for _ in range(2))

    def fill(part: slice) -> None:  # in place: separate pieces would leave holes in the heap
        quantised = _quantise_rows(weight[part].float(), scheme, dtype)
        qdata[part], scale.t()[part], zero.t()[part] = quantised

    fill_rows(weight, fill)
    return Int4Weight(qdata, scale, zero)


def fill_rows(weight: Tensor, fill: Callable[[slice], None]) -> None:
    """Call `fill` with `ROWS_AT_ONCE` rows of `weight` [N, K] at a time, in several threads."""
    if isinstance(weight, FakeTensor):  # its mode belongs to this thread; rows take no memory
        fill(slice(None))
        return
    pieces = [slice(row, row + ROWS_AT_ONCE) for row in range(0, len(weight), ROWS_AT_ONCE)]
    # In so small a piece torch's own threads mostly wait for one another, which takes 50 times as
    # long on a busy machine.
    with ThreadPoolExecutor(torch.get_num_threads()) as threads, torch_threads(1):
        list(threads.map(fill, pieces))


def _quantise_rows(
    rows: Tensor, scheme: Scheme, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return qdata [n, K / 2], scale and zero point [n, K / g] of `rows` [n, K]."""
    groups = rows.unflatten(1, (-1, scheme.group_size))
    low = groups.amin(-1, keepdim=True).clamp(max=0)
    span = groups.amax(-1, keepdim=True).clamp(min=0) - low
    scale = _round_to(torch.where(span > SMALLEST_SPAN, span / MAX_CODE, 1.0), dtype)
    steps = groups / scale
    zero = (-low / scale).round().clamp(0, MAX_CODE)
    if scheme.method == HQQ:
        zero = _half_quadratic(steps, zero, dtype)
    qdata = bytes_of_codes(_codes(steps, zero).to(torch.uint8).flatten(1))
    return qdata, scale.squeeze(-1), zero.squeeze(-1)


def _half_quadratic(steps: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the zero point of each group with the least mean error among all that HQQ tries."""
    best, least, beta = zero, _error(steps, zero), HQQ_BETA
    for _ in range(HQQ_STEPS):
        codes = _codes(steps, zero)
        outliers = _shrink(steps + zero - codes, beta)
        zero = _round_to((codes - steps + outliers).mean(-1, keepdim=True), dtype)
        zero = zero.clamp(0, MAX_CODE)
        error = _error(steps, zero)
        best, least = torch.where(error < least, zero, best), torch.minimum(error, least)
        beta *= HQQ_KAPPA
    return best


def _shrink(error: Tensor, beta: float) -> Tensor:
    """Apply the proximal operator of the p-norm, which is zero except for large errors."""
    size = error.abs()
    return error.sign() * (size - size.pow(HQQ_P - 1) / beta).clamp(min=0)


def _error(steps: Tensor, zero: Tensor) -> Tensor:
    return (_codes(steps, zero) - zero - steps).abs().mean(-1, keepdim=True)


def _codes(steps: Tensor, zero: Tensor) -> Tensor:
    return (steps + zero).round().clamp(0, MAX_CODE)


def _round_to(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype).float()
