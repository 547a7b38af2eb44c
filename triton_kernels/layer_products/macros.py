"""The macros that `kernel.cu` is compiled with: what the layers of a program that launch the same
kernel have in common.

A multiprocessor keeps the code that it ran last. A kernel whose code it does not have takes 4 us
longer on an H200, so layers whose output projections or next projections differ share one, and get
those sizes as arguments.
"""

from collections.abc import Sequence

from torch import Tensor

from eagle_aot.triton_kernels.cuda_source import Macros, as_text
from eagle_aot.triton_kernels.int4_gemm.packing import TILE_N
from eagle_aot.triton_kernels.sdpa_splitk.tiling import LOG2_E

LARGEST = "O_SPLITS", "O_STEPS"
"""Macros that are the largest of all layers."""
NO_ATTENTION: Macros = {"ATTENDS": 0}


def layer_macros(
    codes: Sequence[Tensor],
    splits: Sequence[int],
    has_posts: bool,
    has_scale: bool,
    activation: str,
    eps: Sequence[float],
    multiprocessors: int,
    exchanged: int,
) -> Macros:
    """Return the macros of a layer, with `LARGEST` last: `codes` [tiles, blocks, words] and others
    are arguments of `op.layer_products`; `exchanged` is the length of the memory of that name."""
    out, gate, *_ = codes
    return {
        "HIDDEN": out.shape[0] * TILE_N,
        "MLP": gate.shape[0] * TILE_N // 2,
        "DOWN_SPLITS": splits[2],
        "BLOCKS": multiprocessors,
        "PAIR": exchanged,  # bytes of a fourth of it
        "HAS_POST": int(has_posts),
        "HAS_SCALE": int(has_scale),
        "SILU": int(activation == "silu"),
        **dict(zip(("POST_EPS1", "NEXT_EPS1", "POST_EPS2", "NEXT_EPS2"), eps, strict=True)),
        "O_SPLITS": splits[0],
        "O_STEPS": steps_of(out.shape[1], splits[0]),
    }


def attention_macros(
    k_cache: Tensor,
    parts: tuple[int, int],
    norms: tuple[int, bool, float],
    entries: tuple[int, float, int, int],
    moves: int,
) -> Macros:
    """Return the macros of attention after a layer: `k_cache` is [kv_heads, sequences * slots, D],
    `parts` are the splits and outputs of the projections. `norms` are `heads`, `norm_values` and
    `head_eps` of `op.layer_attention`, `entries` its last four arguments; a step has `moves`."""
    heads, norm_values, head_eps = norms
    slots, scale, window, ring = entries
    of_head, pitch, _ = k_cache.stride()
    return {
        "ATTENDS": 1,
        "QKV_SPLITS": parts[0],
        "PROJECTED": parts[1],
        "HEADS": heads,
        "GROUP": heads // k_cache.shape[0],
        "WINDOW": window,
        "RING_SLOTS": ring,
        "SLOTS": slots,
        "OF_HEAD": of_head,
        "KEY_PITCH": pitch,
        "SCALE": scale * LOG2_E,
        "HEAD_EPS": float(head_eps),
        "NORM_VALUES": int(norm_values),
        "MOVES": moves,
    }


def common_macros(layers: Sequence[Macros], attentions: Sequence[Macros]) -> list[str]:
    """Return what each layer's kernel is compiled with: the same for layers that differ in
    `LARGEST` alone. `attentions` are empty for layers without attention, which take the attention
    macros of the first layer that shares their other macros."""
    texts = []
    for layer, own in zip(layers, attentions, strict=True):
        alike = [at for at, other in enumerate(layers) if _fixed(other) == _fixed(layer)]
        most = {name: max(layers[at][name] for at in alike) for name in LARGEST}
        attention = own or next((attentions[at] for at in alike if attentions[at]), NO_ATTENTION)
        texts.append(as_text({**layer, **most, **attention}))
    return texts


def shapes_of(codes: Sequence[Tensor], splits: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return what `packed_shape` takes for the first product of a layer and for the one after its
    MLP, if it has one: `codes` [tiles, blocks, words] and `splits` are those of
    `op.layer_products`."""
    out, _, _, *after = codes
    last = [(after[0].shape[0], after[0].shape[1], splits[3])] if after else [(0, 1, 1)]
    return [(out.shape[1], out.shape[1], splits[0]), *last]


def packed_shape(size: int, blocks: int, splits: int) -> int:
    """Return a `Shape` of `kernel.cu`: a product's `size` in blocks of columns or in tiles, and the
    splits of its `blocks`. It is odd: torch makes a kernel of its own for numbers that are 1 or
    multiples of 16."""
    assert fits_shape(size, blocks, splits), "`op.is_served` says so"
    return 1 | size << 1 | splits << 14 | steps_of(blocks, splits) << 19


def fits_shape(size: int, blocks: int, splits: int) -> bool:
    """Whether `packed_shape` has enough bits."""
    return size < 1 << 13 and splits < 1 << 5 and steps_of(blocks, splits) < 1 << 12


def steps_of(blocks: int, splits: int) -> int:
    """Return how many of `blocks` each split of a product has; the last may have fewer."""
    return -(-blocks // splits)


def _fixed(layer: Macros) -> Macros:
    return {name: value for name, value in layer.items() if name not in LARGEST}
