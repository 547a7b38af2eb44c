"""How much a round drafts: a chain, a tree of what is likely, or one of given paths."""

import ast
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from eagle_aot.common.errors import SettingError

MAX_TOPK = 16
Ranks = tuple[int, ...]
"""A node of a tree by its ranks among siblings, from the root on: `(0, 2)` is the third most likely
token behind the most likely one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Drafts `depth` tokens deep at most, behind one token `topk` at most, `nodes` in all.

    A chain of K is (K, 1, K), and plain decoding a chain of 0. With `paths` the nodes are those,
    parents first; without, those of the highest probability under the head (EAGLE-2, arXiv
    2406.16858): at each depth the `topk` best nodes of the one before are gone on from.
    """

    depth: int
    topk: int
    nodes: int
    paths: tuple[Ranks, ...] | None = None

    @classmethod
    def chain(cls, length: int) -> "Shape":
        """Of `length` drafts, each behind the one before."""
        return cls(length, 1, length)

    @classmethod
    def of_paths(cls, paths: tuple[Ranks, ...]) -> "Shape":
        """Of at least one path, each behind its parent's."""
        found = tuple(sorted(paths, key=lambda path: (len(path), path)))
        topk = 1 + max(rank for path in found for rank in path)
        shape = cls(len(found[-1]), topk, len(found), found)
        return cls.chain(shape.depth) if shape.nodes == shape.depth and topk == 1 else shape

    @property
    def is_chain(self) -> bool:
        """Whether no token has two drafts behind it."""
        return self.topk == 1

    @property
    def label(self) -> str:
        """For a table or a picture."""
        if not self.nodes:
            return "plain"
        return f"K = {self}" if self.is_chain else f"tree {self}"

    @property
    def head_rows(self) -> int:
        """Drafts that a head goes on from, all depths together: each takes a slot of its cache."""
        if self.paths is None:
            return max(self.depth - 1, 0) * self.topk
        return len({path[:-1] for path in self.paths} - {()})

    def within(self, rows: int, head_rows: int) -> "Shape":
        """As much of it as fits so many rows of a step, the bonus among them, at least one, and of
        a head."""
        if self.nodes < rows and self.topk <= rows and self.head_rows <= head_rows:
            return self
        nodes = min(self.nodes, rows - 1)
        depth = min(self.depth, nodes)
        if self.paths is not None:
            fitting = Shape.of_paths(self.paths[:nodes]) if nodes else Shape.chain(0)
            return self if nodes == self.nodes else fitting
        topk = min(self.topk, rows, head_rows // max(depth - 1, 1))
        return Shape.chain(depth) if topk == 1 or depth == nodes else Shape(depth, topk, nodes)

    @classmethod
    @lru_cache
    def covering(cls, every: frozenset["Shape"]) -> "Shape":
        """The largest depth, top-k and number of nodes of some, of which there is at least one; a
        tree as it is among chains that are no deeper."""
        depth, topk, nodes = (max(getattr(s, n) for s in every) for n in ("depth", "topk", "nodes"))
        whole = (s for s in every if (s.depth, s.topk, s.nodes) == (depth, topk, nodes))
        return next(whole, cls(depth, topk, nodes))

    def __str__(self) -> str:
        if self.is_chain:
            return str(self.depth)
        if self.paths is not None:
            return f"of {self.nodes} paths"
        return f"{self.depth},{self.topk},{self.nodes}"


Tree = Shape | tuple[int, int, int] | str | Path
"""As it is asked for: depth, top-k and nodes, or text as `parse_tree` takes it."""


def check_tree(shape: Shape, max_depth: int, max_rows: int, max_seq_len: int) -> Shape:
    """Raise SettingError for a tree that no step, head or context has room for."""
    depth, topk, nodes = shape.depth, shape.topk, shape.nodes
    candidates = topk + (depth - 1) * topk**2
    asked = f"{depth},{topk},{nodes}" if shape.paths is None else str(shape)
    for holds, why in (
        (not 1 <= depth <= max_depth, f"the depth must be 1 to {max_depth}"),
        (depth >= max_seq_len, f"the context has {max_seq_len} tokens only"),
        (not 1 <= topk <= MAX_TOPK, f"top-k must be 1 to {MAX_TOPK}"),
        (not 1 <= nodes < max_rows, f"there must be 1 to {max_rows - 1} nodes"),
        (nodes < depth, f"a tree {depth} deep has at least {depth} nodes"),
        (shape.paths is None and nodes > candidates, f"there are {candidates} such nodes at most"),
        (shape.head_rows > max_rows, f"the head goes on from {shape.head_rows} drafts, of "
                                     f"{max_rows} at most: take less depth or top-k"),
    ):  # fmt: skip
        if holds:
            raise SettingError(f"tree {asked}: {why}")
    return shape


def parse_tree(text: str) -> Shape:
    """`DEPTH,TOPK,NODES`, or a file of paths. Raises SettingError for anything else."""
    parts = text.split(",")
    if len(parts) == 3 and all(part.strip().isdecimal() for part in parts):
        depth, topk, nodes = map(int, parts)
        return Shape(depth, topk, nodes)
    if not os.path.isfile(text):  # False for what cannot be a name as well
        raise SettingError(
            f"tree {text!r}: neither DEPTH,TOPK,NODES like 6,8,32 nor a file of paths"
        )
    return read_paths(Path(text))


def read_paths(path: Path) -> Shape:
    """A tree as Medusa's and EAGLE's choices are written: `[[0], [1], [0, 0], ...]`, in JSON, or in
    Python with or without a name before it.

    Raises SettingError for a file that is no tree.
    """
    try:
        found = _literal(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError) as error:
        raise SettingError(f"{path}: no list of paths ({error})") from error
    if not isinstance(found, list | tuple) or not found:
        raise SettingError(f"{path}: expected a list of paths like [[0], [1], [0, 0]]")
    known: set[Ranks] = {()}
    for node in sorted((_ranks(node, path) for node in found), key=len):
        if not node or node in known:
            raise SettingError(f"{path}: {list(node)} is there twice, or is no path")
        if node[:-1] not in known:
            raise SettingError(f"{path}: {list(node)} has no parent {list(node[:-1])}")
        known.add(node)
    return Shape.of_paths(tuple(known - {()}))


def _ranks(node: Any, where: Path) -> Ranks:
    ranks = node if isinstance(node, list | tuple) else [None]
    if not all(type(rank) is int and 0 <= rank < MAX_TOPK for rank in ranks):
        raise SettingError(f"{where}: {node!r} is no path: expected ranks of 0 to {MAX_TOPK - 1}")
    return tuple(ranks)


def _literal(text: str) -> Any:
    body = ast.parse(text.strip()).body
    if len(body) != 1 or not isinstance(body[0], ast.Expr | ast.Assign):
        raise ValueError("there must be one list")
    return ast.literal_eval(body[0].value)
