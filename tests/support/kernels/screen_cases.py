"""Rows whose largest logits stand out of an output table's by more or less."""

import torch
from torch import Tensor

from eagle_aot.triton_kernels.screened_table.packing import ScreenCopy, screen_copy


def table(features: int, columns: int, device: str = "cpu") -> tuple[Tensor, ScreenCopy]:
    """Return a table bfloat16 [features, columns] whose rows differ in length, with its copy."""
    generator = torch.Generator(device).manual_seed(features)
    weight = torch.randn(features, columns, generator=generator, device=device)
    lengths = 1 + torch.rand(features, 1, generator=generator, device=device)
    weight = (0.02 * weight * lengths).bfloat16()
    return weight, screen_copy(weight)


def rows_near(weight: Tensor, rows: int, cosine: float) -> Tensor:
    """Return x bfloat16 [1, rows, K], each with this cosine to one row of the table."""
    generator = torch.Generator(weight.device).manual_seed(rows)
    device = weight.device
    chosen = torch.randint(len(weight), (rows,), generator=generator, device=device)
    along = torch.nn.functional.normalize(weight[chosen].float(), dim=1)
    noise = torch.randn(rows, weight.shape[1], generator=generator, device=device)
    noise = torch.nn.functional.normalize(noise, dim=1)
    return ((cosine * along + (1 - cosine**2) ** 0.5 * noise) * 60).bfloat16().unsqueeze(0)


def assert_same_largest(screened: Tensor, exact: Tensor) -> None:
    """Check that logits [..., N] have the largest of `exact`, in the same places."""
    largest = exact.amax(-1, keepdim=True)
    assert torch.equal(screened.amax(-1, keepdim=True), largest)
    assert torch.equal(screened == largest, exact == largest)


def exact_tiles(screened: Tensor, exact: Tensor, features: int = 64) -> int:
    """Return how many tiles of logits [1, rows, N] are those of `exact`."""
    return int((screened == exact)[0].all(0).unflatten(0, (-1, features)).all(-1).sum())
