"""Attention of prompts: this project's kernel by tilings, beside PyTorch's."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from bench.sdpa.layers import Layer
from bench.sdpa.measure import first_line
from eagle_aot.triton_kernels.sdpa_prompt import sdpa_prompt_reference
from eagle_aot.triton_kernels.sdpa_prompt.kernel import launch
from eagle_aot.triton_kernels.sdpa_prompt.tiling import PromptTiling, choose_tiling
from eagle_aot.triton_kernels.sdpa_splitk.tiling import HEAD_DIMS
from shared.graph_timing import median_us

Attention = Callable[[], Tensor]
"""Everything bound: [1, T, heads, D] out."""

POINTS = ((0, 1024), (6144, 2048), (30720, 2048))
"""Tokens before a chunk, and its rows."""

COPIES = 2
"""Of caches, in turn: one chunk reads more than L2 holds, but for a first one."""

CHECKED = 64
"""Rows that are held against float32."""


@dataclass(frozen=True, slots=True)
class Attended:
    """Microseconds of one chunk; `error` is the largest difference from float32."""

    layer: str
    name: str
    behind: int
    rows: int
    us: float
    flop: float
    error: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """Queries [1, T, heads, D] behind `behind` tokens, and caches [kv_heads, 1, slots, D]."""

    layer: Layer
    behind: int
    q: Tensor
    caches: Sequence[tuple[Tensor, Tensor]]
    ring: int

    @property
    def rows(self) -> int:
        return self.q.shape[1]

    @property
    def input_pos(self) -> Tensor:
        return torch.arange(self.behind, self.behind + self.rows, device=self.q.device)

    @property
    def flop(self) -> float:
        """Of what rows see, and no more."""
        window = self.layer.window or self.behind + self.rows
        seen = sum(min(window, p + 1) for p in range(self.behind, self.behind + self.rows))
        return 4.0 * self.layer.heads * self.layer.head_dim * seen

    def arguments(self, at: int = 0) -> tuple[Any, ...]:
        """As the operator takes them."""
        pos, first = self.input_pos, torch.zeros(1, dtype=torch.int64, device=self.q.device)
        sizes = self.layer.scale, self.layer.window, self.ring
        return self.q, *self.caches[at], pos, first, *sizes


Maker = Callable[[Chunk], list[Attention]]


def random_chunk(layer: Layer, behind: int, rows: int, device: str) -> Chunk:
    """Random queries, keys and values."""
    ring = layer.window + max(layer.window, rows) if layer.window else 0
    slots = ring or behind + rows
    shape = layer.kv_heads, 1, slots, layer.head_dim
    normal = partial(torch.randn, dtype=torch.bfloat16, device=device)
    caches = [(normal(shape), normal(shape)) for _ in range(COPIES)]
    return Chunk(layer, behind, normal(1, rows, layer.heads, layer.head_dim), caches, ring)


def tilings(head_dim: int) -> Iterator[PromptTiling]:
    """The chosen one, and its neighbours that fit an H100."""
    yield choose_tiling(head_dim)
    if head_dim == HEAD_DIMS[-1]:
        yield from (PromptTiling(64, 32, 8, 2), PromptTiling(128, 32, 8, 1, parts=2))
        yield from (PromptTiling(64, 64, 4, 2, parts=2), PromptTiling(64, 32, 4, 3, parts=2))
    elif head_dim == HEAD_DIMS[-2]:
        yield from (PromptTiling(128, 32, 8, 2), PromptTiling(128, 32, 8, 3))
        yield PromptTiling(64, 64, 4, 2)
    else:
        yield from (PromptTiling(128, 64, 8, 2), PromptTiling(128, 128, 8, 2))


def measure(chunk: Chunk, sweep: bool, peers: bool, notes: set[str]) -> list[Attended]:
    """The kernel as it is, with other tilings and beside peers, on one chunk."""
    exact = expected(chunk)
    chosen = [choose_tiling(chunk.layer.head_dim)]
    tried = tilings(chunk.layer.head_dim) if sweep else chosen
    makers: dict[str, Maker] = {str_of(tiling): partial(ours, tiling) for tiling in tried}
    if peers:
        makers |= {"SDPA": stock, "flex": flex}
    return [one for name, make in makers.items() for one in timed(chunk, name, make, exact, notes)]


def str_of(tiling: PromptTiling) -> str:
    """A tiling in a table."""
    tile = f"{tiling.row_tile} x {tiling.key_tile}, {tiling.warps} warps, {tiling.stages} stages"
    return f"{tile}, values in {tiling.parts}" if tiling.parts > 1 else tile


def ours(tiling: PromptTiling, chunk: Chunk) -> list[Attention]:
    """The kernel, over caches in turn."""
    return [partial(launch, *chunk.arguments(at), tiling) for at in range(COPIES)]


def timed(
    chunk: Chunk, name: str, make: Maker, exact: Tensor, notes: set[str]
) -> Iterator[Attended]:
    """Nothing where it fails, which is noted."""
    try:
        calls = make(chunk)
        error = float((checked(calls[0]()).float() - exact).abs().max())
        us = median_us(calls)
    except Exception as failure:  # compilers have no common base for theirs
        notes.add(f"{name}, {chunk.layer.name}: {first_line(failure)}")
        return
    finally:
        torch.cuda.empty_cache()
    yield Attended(chunk.layer.name, name, chunk.behind, chunk.rows, us, chunk.flop, error)


def expected(chunk: Chunk) -> Tensor:
    """The checked rows in float32, from the reference over the last of the chunk alone."""
    q, k, v, pos, *others = chunk.arguments()
    return sdpa_prompt_reference(checked(q).float(), k, v, pos[-CHECKED:], *others)


def checked(output: Tensor) -> Tensor:
    """The last rows of [1, T, heads, D]."""
    return output[:, -CHECKED:]


def in_order(chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and what they see in the order of positions: [1, heads, T, D], [1, kv_heads, n, D].

    Copied out of a ring before anything is timed, which is kind to the peers.
    """
    first = max(0, chunk.behind - chunk.layer.window + 1) if chunk.ring else 0
    position = torch.arange(first, chunk.behind + chunk.rows, device=chunk.q.device)
    slots = position % chunk.ring if chunk.ring else position
    k, v = (x[:, 0, slots].unsqueeze(0) for x in chunk.caches[0])
    return chunk.q.transpose(1, 2), k, v


def visible(chunk: Chunk, keys: int) -> Tensor:
    """bool [T, keys] of `in_order`."""
    stands_at = chunk.behind + chunk.rows - keys + torch.arange(keys, device=chunk.q.device)
    age = chunk.input_pos.unsqueeze(1) - stands_at
    return (age >= 0) & (age < (chunk.layer.window or keys))


def stock(chunk: Chunk) -> list[Attention]:
    """PyTorch's SDPA: causal where the chunk begins its text and no window cuts it, else masked."""
    q, k, v = in_order(chunk)
    causal = not chunk.behind and (chunk.layer.window or chunk.rows) >= chunk.rows
    mask = None if causal else visible(chunk, k.shape[2])
    sizes = {"is_causal": causal, "scale": chunk.layer.scale, "enable_gqa": True}
    return [lambda: F.scaled_dot_product_attention(q, k, v, mask, **sizes).transpose(1, 2)]


def flex(chunk: Chunk) -> list[Attention]:
    """flex_attention, compiled, with a block mask made beforehand."""
    q, k, v = in_order(chunk)
    shift, window = k.shape[2] - chunk.rows, chunk.layer.window or k.shape[2]

    def seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return (key <= row + shift) & (key > row + shift - window)

    sizes = None, None, chunk.rows, k.shape[2]
    mask = create_block_mask(seen, *sizes, device=str(chunk.q.device))
    attend, options = compiled_flex(), {"scale": chunk.layer.scale, "enable_gqa": True}
    return [lambda: attend(q, k, v, block_mask=mask, **options).transpose(1, 2)]


@cache
def compiled_flex() -> Any:
    return torch.compile(flex_attention, dynamic=False)
