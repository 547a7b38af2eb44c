"""The order of an INT4 weight in memory that the kernels read, and back.

A weight [N, K] is cut into tiles of `TILE_N` rows by `BLOCK_K` columns, padded with zero scales
where it ends inside one. Within a tile:

- `codes` int16 [N tiles, K blocks, 4096]: word c of a row holds columns c, 32 + c, 64 + c and
  96 + c, lowest nibble first, so that one shift and one mask make two neighbouring columns of one
  quarter. Words lie in the order in which the threads of a warp hold the left operand of a
  16 x 8 x 16 tensor-core product (PTX ISA, `mma.m16n8k16`): 16 consecutive bytes of memory are
  what one thread multiplies, and no shuffle stands between.
- `scales` and, unless every zero point is 8, `zeros` bfloat16 [N tiles, K steps, 128 x groups of
  a step]: rows in the order in which threads hold the product. A step is what the kernels take at
  once: a block, or two where a block is all one group.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn import functional as F

TILE_N = 128
BLOCK_K = 128
GROUPS = (32, 64, 128)
"""Group sizes of the kernels."""

SYMMETRIC_ZERO = 8

ROW_BITS = (8, 2, 8)
"""A row of a tile is [n6 n5 n4, n3, n2 n1 n0]: a warp holds 16, a thread both of n3."""
WORD_BITS = (2, 2, 4, 2)
"""A word of a row is [c4, c3, c2 c1, c0]. In memory, slowest first:
c4, n6 n5 n4, n2 n1 n0, c2 c1, c3, n3, c0."""


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """An INT4 weight as the kernels read it; `rows` and `columns` are those of the weight."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    rows: int
    columns: int

    @property
    def group(self) -> int:
        """Columns that share one scale."""
        return group_of(self.codes, self.scales)

    def to(self, device: torch.device) -> "PackedInt4":
        """The same on another device."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        return replace(
            self, codes=self.codes.to(device), scales=self.scales.to(device), zeros=zeros
        )


def group_of(codes: Tensor, scales: Tensor) -> int:
    """The group size of a packed weight, from its shapes."""
    return codes.shape[1] * BLOCK_K * TILE_N // (scales.shape[1] * scales.shape[2])


def blocks_per_step(group: int) -> int:
    """K blocks that the kernels take at once: enough for two groups."""
    return 2 if group == BLOCK_K else 1


def packable_group(group: int) -> int | None:
    """The kernels' group size that one of `group` columns splits into evenly; None: there is none.

    Equal scales of neighbouring groups are one larger group, so 256 is read as 128.
    """
    return next((size for size in reversed(GROUPS) if group % size == 0), None)


def pack(qdata: Tensor, scale: Tensor, zero_point: Tensor) -> PackedInt4:
    """Pack a weight in the layout of `reference.py`, of a packable group size, on any device."""
    rows, columns = qdata.shape[0], 2 * qdata.shape[1]
    group = packable_group(columns // scale.shape[0])
    assert group is not None
    step = BLOCK_K * blocks_per_step(group)
    size = rows + -rows % TILE_N, columns + -columns % step
    per_row = [_spread(values, columns // group) for values in (scale, zero_point)]
    scales, zeros = (
        _pack_per_row(_padded(values, size[1] // group, size[0]), step // group)
        for values in per_row
    )
    codes = _pack_codes(_padded(qdata, size[0], size[1] // 2))
    return PackedInt4(codes, scales, None if is_symmetric(zero_point) else zeros, rows, columns)


def unpack(weight: PackedInt4) -> tuple[Tensor, Tensor, Tensor]:
    """The canonical `qdata`, `scale` and `zero_point` that `pack` was given, bit for bit.

    Groups larger than the kernels' come back as several equal ones.
    """
    qdata = _unpack_codes(weight.codes)[: weight.rows, : weight.columns // 2]
    groups = weight.columns // weight.group
    scale = _unpack_per_row(weight.scales)[:groups, : weight.rows]
    if weight.zeros is None:
        return qdata, scale, torch.full_like(scale, SYMMETRIC_ZERO)
    return qdata, scale, _unpack_per_row(weight.zeros)[:groups, : weight.rows]


def is_symmetric(zero_point: Tensor) -> bool:
    """Whether every zero point is 8. Weights traced without values are dummies, and those are."""
    return isinstance(zero_point, FakeTensor) or bool((zero_point == SYMMETRIC_ZERO).all())


def _pack_codes(qdata: Tensor) -> Tensor:
    """uint8 [N, K / 2] of whole tiles -> int16 [N tiles, K blocks, 4096]."""
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
    """[K / g, N] of whole tiles -> bfloat16 [N tiles, steps, 128 x groups of a step]."""
    steps = values.view(-1, groups, values.shape[1] // TILE_N, *ROW_BITS)
    return steps.permute(2, 0, 3, 5, 1, 4).flatten(2).to(torch.bfloat16).contiguous()


def _unpack_per_row(packed: Tensor) -> Tensor:
    tiles, steps, length = packed.shape
    values = packed.view(tiles, steps, 8, 8, length // TILE_N, 2).permute(1, 4, 0, 2, 5, 3)
    return values.reshape(steps * length // TILE_N, tiles * TILE_N)


def _spread(values: Tensor, groups: int) -> Tensor:
    """[fewer groups, N] -> [groups, N], each repeated."""
    return values.repeat_interleave(groups // values.shape[0], dim=0)


def _padded(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """Grown to `rows` x `columns` with zeros."""
    return F.pad(matrix, (0, columns - matrix.shape[1], 0, rows - matrix.shape[0]))
