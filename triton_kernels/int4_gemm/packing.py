"""The memory layout of INT4 weights for the kernels, and the conversion to it and back.

A weight [N, K] is cut into tiles of `TILE_N` rows by `BLOCK_K` columns and padded with zero scales.
Within a tile:

- `codes` int16 [N tiles, K blocks, 4096]: word c of a row holds columns c, 32 + c, 64 + c and
  96 + c, lowest nibble first, so that one shift and one mask extract two neighbouring columns of
  one quarter. Words are in the order in which the threads of a warp hold the left operand of a
  16 x 8 x 16 tensor-core product (PTX ISA, `mma.m16n8k16`): each thread multiplies 16 consecutive
  bytes, without a shuffle.
- `scales` and, unless every zero point is 8, `zeros` bfloat16 [N tiles, K steps, 128 x groups per
  step]: rows in the order in which threads hold the product. A step is what the kernels process in
  one iteration: one block, or two if a block is a single group.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn import functional as F

TILE_N = 128
BLOCK_K = 128
GROUPS = (32, 64, 128)
"""Group sizes that the kernels read."""

SYMMETRIC_ZERO = 8

ROW_BITS = (8, 2, 8)
"""Bits of a row of a tile: [n6 n5 n4, n3, n2 n1 n0]. A warp holds 16 rows, a thread both n3."""
WORD_BITS = (2, 2, 4, 2)
"""Bits of a word of a row: [c4, c3, c2 c1, c0]. In memory, slowest first:
c4, n6 n5 n4, n2 n1 n0, c2 c1, c3, n3, c0."""


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """An INT4 weight in the kernels' layout; `rows` and `columns` are those of the weight."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    rows: int
    columns: int

    @property
    def group(self) -> int:
        return group_of(self.codes, self.scales)

    def to(self, device: torch.device) -> "PackedInt4":
        """Move the weight to another device."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        return replace(
            self, codes=self.codes.to(device), scales=self.scales.to(device), zeros=zeros
        )


def group_of(codes: Tensor, scales: Tensor) -> int:
    """Return the group size of a packed weight, from the shapes of its tensors."""
    return codes.shape[1] * BLOCK_K * TILE_N // (scales.shape[1] * scales.shape[2])


def blocks_per_step(group: int) -> int:
    """Return the K blocks per step of the kernels: enough for two groups."""
    return 2 if group == BLOCK_K else 1


def packable_group(group: int) -> int | None:
    """Return the largest of `GROUPS` that divides `group`; None if there is none.

    A group of 256 columns is read as two groups of 128 with equal scales.
    """
    return next((size for size in reversed(GROUPS) if group % size == 0), None)


def pack(qdata: Tensor, scale: Tensor, zero_point: Tensor) -> PackedInt4:
    """Pack a weight of a packable group size, in the layout of `reference.py`, on any device.

    qdata uint8 [N, K / 2], scale and zero_point [K / g, N].
    """
    rows, columns = qdata.shape[0], 2 * qdata.shape[1]
    group = packable_group(columns // scale.shape[0])
    assert group is not None
    step = BLOCK_K * blocks_per_step(group)
    size = rows + -rows % TILE_N, columns + -columns % step
    per_row = [_repeat_groups(values, columns // group) for values in (scale, zero_point)]
    scales, zeros = (
        _pack_per_row(_padded(values, size[1] // group, size[0]), step // group)
        for values in per_row
    )
    codes = _pack_codes(_padded(qdata, size[0], size[1] // 2))
    return PackedInt4(codes, scales, None if is_symmetric(zero_point) else zeros, rows, columns)


def unpack(weight: PackedInt4) -> tuple[Tensor, Tensor, Tensor]:
    """Return `qdata` [N, K / 2], `scale` and `zero_point` [K / g, N] as given to `pack`.

    They are the same bit for bit, but a group larger than 128 becomes several equal ones.
    """
    qdata = _unpack_codes(weight.codes)[: weight.rows, : weight.columns // 2]
    groups = weight.columns // weight.group
    scale = _unpack_per_row(weight.scales)[:groups, : weight.rows]
    if weight.zeros is None:
        return qdata, scale, torch.full_like(scale, SYMMETRIC_ZERO)
    return qdata, scale, _unpack_per_row(weight.zeros)[:groups, : weight.rows]


def is_symmetric(zero_point: Tensor) -> bool:
    """Whether every zero point [K / g, N] is 8, as in dummies, which are traced without values."""
    return isinstance(zero_point, FakeTensor) or bool((zero_point == SYMMETRIC_ZERO).all())


def _pack_codes(qdata: Tensor) -> Tensor:
    """Pack uint8 [N, K / 2] of whole tiles as int16 [N tiles, K blocks, 4096]."""
    rows, half = qdata.shape
    quarters = qdata.view(rows, -1, 4, 16)
    nibbles = torch.stack((quarters & 0xF, quarters >> 4), dim=-1)
    halves = nibbles[:, :, 0::2] | (nibbles[:, :, 1::2] << 4)
    words = halves.permute(0, 1, 3, 4, 2).contiguous().view(torch.int16)
    tiles = words.view(-1, *ROW_BITS, 2 * half // BLOCK_K, *WORD_BITS)
    return tiles.permute(0, 4, 5, 1, 3, 7, 6, 2, 8).flatten(2).contiguous()


def _unpack_codes(codes: Tensor) -> Tensor:
    tiles, blocks, _ = codes.shape
    words = codes.view(tiles, blocks, 2, 8, 8, 4, 2, 2, 2).permute(0, 3, 7, 4, 1, 2, 6, 5, 8)
    halves = words.reshape(tiles * TILE_N, blocks, 16, 2, 1).contiguous().view(torch.uint8)
    nibbles = torch.stack((halves & 0xF, halves >> 4), dim=-1).flatten(-2)  # [..., 16, 2, 4]
    quarters = nibbles[..., 0, :] | (nibbles[..., 1, :] << 4)
    return quarters.transpose(-1, -2).reshape(tiles * TILE_N, -1)


def _pack_per_row(values: Tensor, groups: int) -> Tensor:
    """Pack [K / g, N] of whole tiles as bfloat16 [N tiles, steps, 128 x groups per step]."""
    steps = values.view(-1, groups, values.shape[1] // TILE_N, *ROW_BITS)
    return steps.permute(2, 0, 3, 5, 1, 4).flatten(2).to(torch.bfloat16).contiguous()


def _unpack_per_row(packed: Tensor) -> Tensor:
    tiles, steps, length = packed.shape
    values = packed.view(tiles, steps, 8, 8, length // TILE_N, 2).permute(1, 4, 0, 2, 5, 3)
    return values.reshape(steps * length // TILE_N, tiles * TILE_N)


def _repeat_groups(values: Tensor, groups: int) -> Tensor:
    """Repeat the rows of [fewer groups, N] to [groups, N]."""
    return values.repeat_interleave(groups // values.shape[0], dim=0)


def _padded(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """Pad a matrix with zeros to [rows, columns]."""
    return F.pad(matrix, (0, columns - matrix.shape[1], 0, rows - matrix.shape[0]))
