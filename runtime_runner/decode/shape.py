"""How much a round drafts: a chain, a tree grown by probability, or a tree of fixed paths."""

import ast
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from eagle_aot.common.errors import SettingError
from eagle_aot.common.files import read_small

AUTO: Final = "auto"
"""The chain length, or the tree, of requests whose shape is chosen round by round, by speed."""
ChainLen = int | Literal["auto"]
"""The number of drafts per round."""
MAX_TOPK = 16
Ranks = tuple[int, ...]
"""A node of a tree by its ranks among siblings, from the root on: `(0, 2)` is the third most likely
token after the most likely one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A draft at most `depth` tokens deep, with at most `topk` children a node and `nodes` in all.

    A chain of K is (K, 1, K), and plain decoding a chain of 0. With `paths` the nodes are fixed,
    parents first. Without, they are those of the highest probability under the head (EAGLE-2, arXiv
    2406.16858): at each depth, the `topk` best nodes of the depth before are expanded.
    """

    depth: int
    topk: int
    nodes: int
    paths: tuple[Ranks, ...] | None = None

    @classmethod
    def chain(cls, length: int) -> "Shape":
        """Return a chain of `length` drafts."""
        return cls(length, 1, length)

    @classmethod
    def of_paths(cls, paths: tuple[Ranks, ...]) -> "Shape":
        """Return the tree of these paths, at least one, in any order."""
        nodes = tuple(sorted(paths, key=lambda path: (len(path), path)))
        topk = 1 + max(rank for path in nodes for rank in path)
        shape = cls(len(nodes[-1]), topk, len(nodes), nodes)
        return cls.chain(shape.depth) if shape.nodes == shape.depth and topk == 1 else shape

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children."""
        return self.topk == 1

    @property
    def label(self) -> str:
        """The shape as tables and plots name it."""
        if not self.nodes:
            return "plain"
        return f"K = {self}" if self.is_chain else f"tree {self}"

    @property
    def head_rows(self) -> int:
        """How many drafts a head expands, at all depths: each takes a slot of its cache."""
        if self.paths is None:
            return max(self.depth - 1, 0) * self.topk
        return len({path[:-1] for path in self.paths} - {()})

    def within(self, rows: int, head_rows: int) -> "Shape":
        """Return as much of the shape as fits `rows` rows of a step, including the bonus row, and
        `head_rows` rows of a head."""
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
        """Return a shape with the largest depth, top-k and number of nodes of at least one shape: a
        given one where it has all three."""
        depth, topk, nodes = (max(getattr(s, n) for s in every) for n in ("depth", "topk", "nodes"))
        whole = (s for s in every if (s.depth, s.topk, s.nodes) == (depth, topk, nodes))
        return next(whole, cls(depth, topk, nodes))

    def __str__(self) -> str:
        if self.is_chain:
            return str(self.depth)
        if self.paths is not None:
            return f"of {self.nodes} paths"
        return f"{self.depth},{self.topk},{self.nodes}"


PLAIN = Shape.chain(0)
MAX_TREE_BYTES = 4 << 20
MAX_AUTO_DEPTH = 7
AUTO_CHAINS = tuple(Shape.chain(length) for length in (0, 1, 2, 3, 4, 5, MAX_AUTO_DEPTH))
"""The chains that are chosen among. A chain of 6 is nowhere faster than 5 and 7 by as much as
recording its rounds costs."""
AUTO_TREES = Shape(4, 2, 7), Shape(4, 4, 15), Shape(4, 8, 31), Shape(6, 8, 31), Shape(7, 8, 63)
"""The trees that are chosen among. With its root, a tree has 8, 16, 32 or 64 rows, the most that a
text has: GPU kernels take rows in such tiles, and one row more costs as much as a whole tile. No
tree is deeper than the longest chain, from whose acceptance rates those of trees are estimated."""


def auto_shapes(trees: bool) -> tuple[Shape, ...]:
    """Return the shapes that are chosen among, with trees or without."""
    return (*AUTO_CHAINS, *AUTO_TREES) if trees else AUTO_CHAINS


Tree = Shape | tuple[int, int, int] | str
"""A tree as users write it: depth, top-k and nodes, or text that `parse_tree` reads."""


def check_tree(shape: Shape, max_depth: int, max_rows: int, max_seq_len: int) -> Shape:
    """Raise SettingError for a tree that does not fit the step, the head or the context."""
    depth, topk, nodes = shape.depth, shape.topk, shape.nodes
    candidates = topk + (depth - 1) * topk**2
    written = f"{depth},{topk},{nodes}" if shape.paths is None else str(shape)
    for holds, why in (
        (not 1 <= depth <= max_depth, f"the depth must be 1 to {max_depth}"),
        (depth >= max_seq_len, f"the context has {max_seq_len} tokens only"),
        (not 1 <= topk <= MAX_TOPK, f"top-k must be 1 to {MAX_TOPK}"),
        (not 1 <= nodes < max_rows, f"there must be 1 to {max_rows - 1} nodes"),
        (nodes < depth, f"a tree {depth} deep has at least {depth} nodes"),
        (shape.paths is None and nodes > candidates, f"there are {candidates} such nodes at most"),
        (shape.head_rows > max_rows, f"the head would expand {shape.head_rows} drafts, at "
                                     f"most {max_rows} fit: lower depth or top-k"),
    ):  # fmt: skip
        if holds:
            raise SettingError(f"tree {written}: {why}")
    return shape


def parse_tree(text: str) -> Shape:
    """Read `DEPTH,TOPK,NODES` or a file of paths. Raises SettingError for anything else."""
    parts = text.split(",")
    if len(parts) == 3 and all(part.strip().isdecimal() for part in parts):
        depth, topk, nodes = map(int, parts)
        return Shape(depth, topk, nodes)
    if not os.path.isfile(text):  # also False for text that cannot be a file name
        raise SettingError(
            f"tree {text!r}: neither DEPTH,TOPK,NODES like 6,8,32 nor a file of paths"
        )
    return read_paths(Path(text))


def read_paths(path: Path) -> Shape:
    """Read a tree of paths as Medusa and EAGLE write them: `[[0], [1], [0, 0], ...]`, in JSON or as
    a Python list or assignment.

    Raises SettingError for a file that is no tree.
    """
    try:
        nodes = _literal(read_small(path, MAX_TREE_BYTES).decode("utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError) as error:
        raise SettingError(f"{path}: no list of paths ({error})") from error
    if not isinstance(nodes, list | tuple) or not nodes:
        raise SettingError(f"{path}: expected a list of paths like [[0], [1], [0, 0]]")
    tree: set[Ranks] = {()}
    for node in sorted((_ranks(node, path) for node in nodes), key=len):
        if not node or node in tree:
            raise SettingError(f"{path}: {list(node)} is a duplicate or no path")
        if node[:-1] not in tree:
            raise SettingError(f"{path}: {list(node)} has no parent {list(node[:-1])}")
        tree.add(node)
    return Shape.of_paths(tuple(tree - {()}))


def _ranks(node: Any, path: Path) -> Ranks:
    ranks = node if isinstance(node, list | tuple) else [None]
    if not all(type(rank) is int and 0 <= rank < MAX_TOPK for rank in ranks):
        raise SettingError(f"{path}: {node!r} is no path: expected ranks of 0 to {MAX_TOPK - 1}")
    return tuple(ranks)


def _literal(text: str) -> Any:
    body = ast.parse(text.strip()).body
    if len(body) != 1 or not isinstance(body[0], ast.Expr | ast.Assign):
        raise ValueError("there must be one list")
    return ast.literal_eval(body[0].value)
