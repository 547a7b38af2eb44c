"""The project's kernels that a method runs, with sizes and tiles, read from its traced graph.

It does not contain what the backend's compiler chooses for stock operators.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from eagle_aot.export.graph_checks.nodes import argument_tensor, operator_name
from eagle_aot.triton_kernels.dense_gemm import tiling as dense_tiling
from eagle_aot.triton_kernels.int4_experts.tiling import FEW_ROWS_TILES, many_rows_tile
from eagle_aot.triton_kernels.int4_gemm import packing
from eagle_aot.triton_kernels.int4_gemm.tiling import SMALL_M_TILES, large_m_tile
from eagle_aot.triton_kernels.kv_int8 import head_dim_of
from eagle_aot.triton_kernels.sdpa_prompt import tiling as prompt_tiling
from eagle_aot.triton_kernels.sdpa_splitk.tiling import choose_tiling, is_wide, wide_tiling

KernelChoice = tuple[tuple[str, Any], ...]


def kernel_choices(program: ExportedProgram) -> dict[str, list[dict[str, Any]]]:
    """Return the different uses of each operator: sizes, tiles, and the number of `calls`."""
    uses: Counter[tuple[str, KernelChoice]] = Counter()
    for node in program.graph.nodes:
        operator = operator_name(node)
        if operator in DESCRIBED:
            uses[operator, tuple(DESCRIBED[operator](node).items())] += 1
    choices: dict[str, list[dict[str, Any]]] = {}
    for (operator, choice), calls in uses.items():
        choices.setdefault(operator, []).append(dict(choice) | {"calls": calls})
    return choices


def small_m(node: Node) -> dict[str, Any]:
    """Return sizes and tiles of an INT4 product of few rows."""
    kinds = SMALL_M_TILES[_blocks_per_step(node)]
    return int4_sizes(node) | {
        "splits": node.args[5],
        "tile_rows": tuple(tile.rows for tile in kinds),
        "tile_features": packing.TILE_N,
        "block_columns": packing.BLOCK_K,
        "warps": tuple(tile.warps for tile in kinds),
        "stages": tuple(tile.stages for tile in kinds),
    }


def large_m(node: Node) -> dict[str, Any]:
    """Return sizes and tiles of an INT4 product of many rows."""
    tile = large_m_tile(_blocks_per_step(node))
    return int4_sizes(node) | {
        "tile_rows": tile.rows,
        "tile_features": tile.tiles * packing.TILE_N,
        "block_columns": packing.BLOCK_K,
        "warps": tile.warps,
        "stages": tile.stages,
    }


def int4_sizes(node: Node) -> dict[str, Any]:
    return {"features": node.args[4], "columns": shape(node, 0)[-1]}


def _blocks_per_step(node: Node) -> int:
    group = packing.group_of(argument_tensor(node.args[1]), argument_tensor(node.args[2]))
    return packing.blocks_per_step(group)


def experts_few(node: Node) -> dict[str, Any]:
    """Return sizes and tiles of a product of few rows with their experts."""
    tiles = FEW_ROWS_TILES[_blocks_per_step_of_experts(node, 3)]
    return experts_sizes(node, 3) | {
        "tile_rows": tuple(tile.width for tile in tiles),
        "warps": tuple(tile.warps for tile in tiles),
        "stages": tuple(tile.stages for tile in tiles),
    }


def experts_many(node: Node) -> dict[str, Any]:
    """Return sizes and tiles of a product of many rows with their experts."""
    tile = many_rows_tile(_blocks_per_step_of_experts(node, 5))
    return experts_sizes(node, 5) | {
        "tile_rows": tile.width,
        "warps": tile.warps,
        "stages": tile.stages,
    }


def experts_sizes(node: Node, codes: int) -> dict[str, Any]:
    """Return the sizes of experts whose codes are an argument at `codes`."""
    return {
        "experts": shape(node, codes)[0],
        "top_k": shape(node, 1)[-1],
        "features": node.args[codes + 3],
        "columns": shape(node, 0)[-1],
    }


def _blocks_per_step_of_experts(node: Node, codes: int) -> int:
    one = (argument_tensor(node.args[at])[0] for at in (codes, codes + 1))
    return packing.blocks_per_step(packing.group_of(*one))


def dense_small_m(node: Node) -> dict[str, Any]:
    """Return sizes and tiles of a dense product of few rows."""
    features, columns = shape(node, 1)
    return {
        "features": features,
        "columns": columns,
        "splits": node.args[2],
        "tile_rows": tuple(tile.rows for tile in dense_tiling.DENSE_TILES),
        "tile_features": tuple(tile.features for tile in dense_tiling.DENSE_TILES),
        "stages": tuple(tile.stages for tile in dense_tiling.DENSE_TILES),
    }


def screened_logits(node: Node) -> dict[str, Any]:
    """Return sizes and tile of a product with an output table that has an INT8 copy."""
    features, columns = shape(node, 1)
    tile = dense_tiling.DENSE_TILES[0]
    return {"features": features, "columns": columns, "screened_rows": tile.rows}


def sdpa(node: Node) -> dict[str, Any]:
    """Return heads and tiling of an attention of few rows."""
    heads, head_dim = shape(node, 0)[2:]
    kv_heads, window = shape(node, 1)[0], node.args[7]
    assert isinstance(window, int)
    layer = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": window}
    q, k = (argument_tensor(node.args[at]).dtype for at in (0, 1))
    if is_wide(heads, kv_heads, head_dim, window, q, k):
        return layer | asdict(wide_tiling(kv_heads))
    tiles = choose_tiling(heads, kv_heads, head_dim, window, int8=k == torch.int8)
    return layer | asdict(tiles)


def sdpa_prompt(node: Node) -> dict[str, Any]:
    """Return heads and tiling of an attention of prompts."""
    heads, head_dim = shape(node, 0)[2:]
    layer = {"heads": heads, "kv_heads": shape(node, 1)[0], "head_dim": head_dim}
    return layer | {"window": node.args[6]} | asdict(prompt_tiling.choose_tiling(head_dim))


def residual_norm(node: Node) -> dict[str, Any]:
    """Return width and warps of a residual sum with its norms."""
    from eagle_aot.triton_kernels.residual_norm import kernel

    return {"hidden_size": shape(node, 0)[-1], "warps": kernel.WARPS}


def norm_rope_store(node: Node) -> dict[str, Any]:
    """Return heads and tiles of norm, rotation and storing before an attention."""
    from eagle_aot.triton_kernels.norm_rope_store import kernel

    cache = argument_tensor(node.args[5])
    layer = {"heads": node.args[10], "kv_heads": cache.shape[0], "head_dim": head_dim_of(cache)}
    return layer | {"tile_rows": kernel.TILE, "warps": kernel.WARPS}


def copy_rows(node: Node) -> dict[str, Any]:
    """Return heads and tiles of copied rows."""
    from eagle_aot.triton_kernels.copy_rows import kernel

    cache = argument_tensor(node.args[0])
    layer = {"kv_heads": cache.shape[0], "head_dim": head_dim_of(cache)}
    return layer | {"tile_rows": kernel.TILE, "warps": kernel.WARPS}


def shape(node: Node, position: int) -> tuple[Any, ...]:
    """Return the shape of the tensor argument at `position`."""
    return tuple(argument_tensor(node.args[position]).shape)


DESCRIBED: dict[str, Callable[[Node], dict[str, Any]]] = {
    "eagle_aot::int4_small_m": small_m,
    "eagle_aot::int4_large_m": large_m,
    "eagle_aot::int4_experts_few": experts_few,
    "eagle_aot::int4_experts_many": experts_many,
    "eagle_aot::dense_small_m": dense_small_m,
    "eagle_aot::screened_logits": screened_logits,
    "eagle_aot::sdpa_splitk": sdpa,
    "eagle_aot::sdpa_prompt": sdpa_prompt,
    "eagle_aot::residual_norm": residual_norm,
    "eagle_aot::norm_rope_store": norm_rope_store,
    "eagle_aot::copy_rows": copy_rows,
}
