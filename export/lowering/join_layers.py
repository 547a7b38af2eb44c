"""Join what lies between the attentions of two layers into `eagle_aot::layer_products`, with the
second of them into `eagle_aot::layer_attention`."""

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from eagle_aot.export.graph_checks.nodes import argument_tensor
from eagle_aot.export.prepare.dense_rows import insert_call, replace_node
from eagle_aot.triton_kernels.cuda_source import Macros
from eagle_aot.triton_kernels.layer_products.macros import (
    attention_macros,
    common_macros,
    layer_macros,
)
from eagle_aot.triton_kernels.layer_products.op import (
    EMPTY,
    RANKS,
    attends,
    exchanged_size,
    is_joinable,
    is_served,
)

PRODUCT = torch.ops.eagle_aot.int4_small_m.default
NORM = torch.ops.eagle_aot.residual_norm.default
FLATTEN = torch.ops.aten.flatten.using_ints
FULL = torch.ops.aten.full.default
JOINED = torch.ops.eagle_aot.layer_products.default
STORE = torch.ops.eagle_aot.norm_rope_store.default
ATTEND = torch.ops.eagle_aot.sdpa_splitk.default
WITH_ATTENTION = torch.ops.eagle_aot.layer_attention.default
SHAPES = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("view", "reshape", "unflatten", "flatten", "unsqueeze", "squeeze")
)
"""Operators that leave elements in their order."""


@dataclass(frozen=True, slots=True)
class Between:
    """The nodes after an attention: products with the output projection, gate and up, down, and the
    next layer's queries, keys and values if there is one; the norms after the first and third."""

    products: tuple[Node, ...]
    norms: tuple[Node, Node]

    def of_products(self, position: int) -> list[Any]:
        """Return an argument of each product."""
        return [product.args[position] for product in self.products]

    def weights(self) -> tuple[list[Tensor], list[int]]:
        """Return the codes and the splits of the products."""
        return [argument_tensor(codes) for codes in self.of_products(1)], self.of_products(5)

    def eps(self) -> list[Any]:
        """Return the epsilons of both norms: post, next, post, next."""
        return [eps for norm in self.norms for eps in norm.args[5:7]]


def join_layers(program: ExportedProgram, multiprocessors: int) -> None:
    """Replace the products and norms between attentions, and after the last, by one operator each,
    in place, wherever its kernel serves them and nothing else reads what it computes on the way."""
    norms = program.graph.find_nodes(op="call_function", target=NORM)
    served = [[b for b in _ending_with(n) if _is_served(b, multiprocessors)] for n in norms]
    found = [candidates[0] for candidates in served if candidates]
    if found:
        attentions = [_attention_macros(b, multiprocessors) for b in found]
        size = _exchanged_size(found, attentions, multiprocessors)
        layers = [_layer_macros(b, multiprocessors, size) for b in found]
        texts = common_macros(layers, attentions)
        exchanged = _full_of_empty(program.graph, found[0], size)
        for between, attention, macros in zip(found, attentions, texts, strict=True):
            exchanged = _join(program, between, exchanged, multiprocessors, macros)
            if attention:
                exchanged = _join_attention(program, exchanged)
    program.graph_module.recompile()


def _exchanged_size(
    found: Sequence[Between], attentions: Sequence[Macros], multiprocessors: int
) -> int:
    """Return how many numbers programs exchange in any layer, with room for the most splits."""
    weights = [between.weights() for between in found]
    most = max(splits[0] for _, splits in weights)
    heads = [int(macros.get("HEADS", 0)) for macros in attentions]
    return max(
        exchanged_size(codes, [most, *splits[1:]], multiprocessors, attending)
        for (codes, splits), attending in zip(weights, heads, strict=True)
    )


def _layer_macros(between: Between, multiprocessors: int, size: int) -> Macros:
    """Return the macros of the kernel for these nodes; programs exchange `size` numbers."""
    codes, splits = between.weights()
    posts, scale, gate = between.norms[0].args[2], between.norms[1].args[3], between.products[1]
    options = posts is not None, scale is not None, str(gate.args[6]), between.eps()
    return layer_macros(codes, splits, *options, multiprocessors, size)


def _full_of_empty(graph: Graph, between: Between, size: int) -> Node:
    """Insert what the first of joined layers exchanges, filled in every step."""
    origin, like = between.products[0], argument_tensor(between.products[0])
    with graph.inserting_before(origin):
        kind: dict[str, Any] = {"dtype": torch.int32, "device": like.device}
        node = graph.call_function(FULL, ([size], EMPTY), kind)
    node.meta = {**origin.meta, "val": like.new_full((size,), EMPTY, dtype=torch.int32)}
    return node


def _ending_with(down_norm: Node) -> list[Between]:
    """Return what may be joined and ends with a norm, the most first: with a product that reads the
    norm, and without one. Empty if other nodes lead to it."""
    down = _input(down_norm, 0, PRODUCT)
    gate = _input(_input(down, 0, FLATTEN), 0, PRODUCT)
    out_norm = _norm_before(gate)
    out = _input(out_norm, 0, PRODUCT)
    if out is None or down is None or gate is None:
        return []
    assert out_norm is not None
    stream = down_norm.args[1]
    is_residual = isinstance(stream, Node) and stream.args == (out_norm, 0)
    inner = (out, gate, *down.all_input_nodes[:1], down, *out_norm.users)
    is_private = len(out_norm.users) == 2 and all(len(node.users) == 1 for node in inner)
    if not is_residual or not is_private:
        return []
    readers = [node for result in down_norm.users for node in result.users]
    products = [n for n in readers if _norm_before(n) is down_norm and not n.args[-1]]
    ends = [(product,) for product in products[:1]] + [()]
    return [Between((out, gate, down, *end), (out_norm, down_norm)) for end in ends]


def _norm_before(product: Node | None) -> Node | None:
    """Return the norm whose second result a product reads."""
    if product is None or product.target is not PRODUCT:
        return None
    normed = _input(product, 0, operator.getitem)
    return _input(normed, 0, NORM) if normed is not None and normed.args[1] == 1 else None


def _input(node: Node | None, position: int, target: object) -> Node | None:
    """Return an argument of a node if it is a call of `target`."""
    argument = None if node is None else node.args[position]
    return argument if isinstance(argument, Node) and argument.target is target else None


def _is_served(between: Between, multiprocessors: int) -> bool:
    """Whether the kernel computes these products and norms."""
    out, gate, down, *_ = between.products
    stream = argument_tensor(between.norms[0].args[1])
    if isinstance(stream.shape[-2], int):  # a fixed row would be no argument of the kernel
        return False
    is_gated = bool(gate.args[6]) and not out.args[6] and not down.args[6]
    has_posts = {norm.args[2] is not None for norm in between.norms}
    return (
        is_gated
        and len(has_posts) == 1
        and between.norms[0].args[3] is None
        and all(argument_tensor(node).dtype == torch.bfloat16 for node in _floats(between))
        and all(_is_joinable(product) for product in between.products)
        and is_served(*between.weights(), multiprocessors)
    )


def _floats(between: Between) -> list[Node]:
    """Return what the kernel reads in bfloat16."""
    read = [between.products[0].args[0], *between.of_products(2)]
    read += [argument for norm in between.norms for argument in norm.args[1:5]]
    return [node for node in read if isinstance(node, Node)]


def _is_joinable(product: Node) -> bool:
    x, codes, scales = (argument_tensor(argument) for argument in product.args[:3])
    features, zeros = product.args[4], product.args[3]
    assert isinstance(features, int)
    return zeros is None and is_joinable(codes, scales, features, x.shape[-1])


def _join(
    program: ExportedProgram,
    between: Between,
    exchanged: Node,
    multiprocessors: int,
    macros: str,
) -> Node:
    """Replace nodes by one, and return what the next one exchanges."""
    out, gate, down, *after = between.products
    out_norm, down_norm = between.norms
    posts = [norm.args[2] for norm in between.norms if norm.args[2] is not None]
    arguments = (
        out.args[0],
        out_norm.args[1],
        exchanged,
        *(between.of_products(position) for position in (1, 2, 5)),
        posts,
        [norm.args[4] for norm in between.norms],
        down_norm.args[3],
        gate.args[6],
        between.eps(),
        multiprocessors,
        macros,
    )
    graph = program.graph
    with graph.inserting_before(down_norm):
        joined = insert_call(graph, down_norm, JOINED, *arguments)
        parts, stream, normed, emptied = (_result(graph, joined, at) for at in range(4))
    if after:
        replace_node(program, after[0], parts)
    else:
        graph.erase_node(parts)
    for result in list(down_norm.users):
        replace_node(program, result, normed if result.args[1] else stream)
    _erase(graph, {out, out_norm, *out_norm.users, gate, down.args[0], down, down_norm})
    return emptied


def _erase(graph: Graph, nodes: Collection[Any]) -> None:
    for node in reversed([node for node in graph.nodes if node in nodes]):
        graph.erase_node(node)


def _result(graph: Graph, joined: Node, at: int) -> Node:
    result = graph.call_function(operator.getitem, (joined, at))
    result.meta = {**joined.meta, "val": joined.meta["val"][at]}
    return result


@dataclass(frozen=True, slots=True)
class Attention:
    """The nodes of an attention: the store of its heads, itself, and what gives results shapes."""

    store: Node
    queries: list[Node]
    attend: Node
    results: list[Node]


def _attention_after(parts: Node) -> Attention | None:
    """Return the attention that a product's parts alone go into, None if it is another one."""
    store = _user(parts, STORE)
    if store is None:
        return None
    queries = _shapes(store)
    attend = _user([store, *queries][-1], ATTEND)
    results = [] if attend is None else _shapes(attend)
    return Attention(store, queries, attend, results) if attend is not None and results else None


def _shapes(node: Node) -> list[Node]:
    """Return the chain of nodes that only give a node's elements other shapes."""
    users = list(node.users)
    is_shape = len(users) == 1 and getattr(users[0].target, "overloadpacket", None) in SHAPES
    return [users[0], *_shapes(users[0])] if is_shape else []


def _user(node: Node, target: object) -> Node | None:
    """Return the only user of a node if it is a call of `target`."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is target else None


def _attention_macros(between: Between, multiprocessors: int) -> Macros:
    """Return the macros of the attention after the products in the same kernel; empty if it is in
    others."""
    after = _attention_after(between.products[-1])
    if after is None:
        return {}
    weights = [node for node in after.store.args[3:5] if isinstance(node, Node)]
    if [argument_tensor(node).dtype for node in weights] != 2 * [torch.bfloat16]:
        return {}
    cache, values = (argument_tensor(node) for node in after.store.args[5:7])
    norms: Any = after.store.args[10:13]
    scale, window, ring = after.attend.args[6:9]
    slots = argument_tensor(after.attend.args[1]).shape[2]
    entries: Any = slots, scale, window, ring
    sources = after.store.args[8]
    moves = 0 if sources is None else argument_tensor(sources).shape[1]
    shape = argument_tensor(between.products[3]).shape
    parts = shape[0], shape[-1]
    q_shape = norms[0], argument_tensor(after.store).shape[-1]
    served = attends(q_shape, cache, entries[2], parts, multiprocessors)
    alike = (cache.stride(), cache.dtype) == (values.stride(), after.store.args[13])
    if not served or not alike or moves not in (0, 2 * RANKS):
        return {}
    return attention_macros(cache, parts, norms, entries, moves)


def _join_attention(program: ExportedProgram, emptied: Node) -> Node:
    """Replace a joined node and the attention after it by one, and return what the next one
    exchanges. What reads the node before the attention is left alone, with the node."""
    joined = emptied.args[0]
    assert isinstance(joined, Node)
    results = {node.args[1]: node for node in joined.users}
    after = _attention_after(results[0])
    assert after is not None
    order = {node: number for number, node in enumerate(program.graph.nodes)}
    others = [user for at, node in results.items() if at for user in node.users]
    if any(order[user] < order[after.results[-1]] for user in others):
        return emptied
    _, k, _, *attend = after.attend.args
    slots = argument_tensor(k).shape[2]
    arguments = *joined.args, *after.store.args[1:13], *attend[:3], slots, *attend[3:]
    graph = program.graph
    with graph.inserting_before(after.results[-1]):
        whole = insert_call(graph, after.results[-1], WITH_ATTENTION, *arguments)
        found = [_result(graph, whole, at) for at in range(4)]
    replace_node(program, after.results[-1], found[0])
    for at in (1, 2, 3):
        if at in results:
            replace_node(program, results[at], found[at])
    shapes = *after.queries, *after.results
    _erase(graph, {joined, *joined.users, after.store, after.attend, *shapes})
    return found[3]
