"""Draft shapes: limits, budgets, and files of paths."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.decode.shape import Shape, check_tree, parse_tree, read_paths

PATHS = [[0], [1], [0, 0], [0, 2], [0, 0, 0]]


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Paths, each with its parent, in any order."""
    found: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(1, 20))):
        parent = draw(st.sampled_from([(), *found]).filter(lambda path: len(path) < 6))
        path = (*parent, draw(st.integers(0, 5)))
        found += [path] if path not in found else []
    return draw(st.permutations(found))


def test_tree_with_one_branch_is_a_chain() -> None:
    assert Shape(4, 1, 4) == Shape.chain(4) == Shape.of_paths(((0,), (0, 0), (0, 0, 0), (0,) * 4))
    assert Shape.chain(4).is_chain and not Shape(4, 2, 4).is_chain
    assert (str(Shape.chain(4)), str(Shape(6, 8, 32))) == ("4", "6,8,32")


@pytest.mark.parametrize(("shape", "why"), [
    ((0, 1, 1), "the depth must be 1 to 15"),
    ((16, 1, 16), "the depth must be 1 to 15"),
    ((2, 0, 2), "top-k must be 1 to 16"),
    ((2, 17, 20), "top-k must be 1 to 16"),
    ((2, 2, 0), "there must be 1 to 63 nodes"),
    ((7, 8, 64), "there must be 1 to 63 nodes"),
    ((6, 8, 5), "a tree 6 deep has at least 6 nodes"),
    ((2, 2, 7), "there are 6 such nodes at most"),
    ((3, 1, 5), "there are 3 such nodes at most"),
    ((10, 8, 32), "the head would expand 72 drafts, at most 64 fit: lower depth or top-k"),
])  # fmt: skip
def test_tree_that_fits_no_step_is_refused(shape: tuple[int, int, int], why: str) -> None:
    with pytest.raises(SettingError, match="^tree {},{},{}: ".format(*shape) + why + "$"):
        check_tree(Shape(*shape), 15, 64, 1024)


@pytest.mark.parametrize("shape", [(1, 1, 1), (15, 4, 63), (5, 16, 63), (7, 8, 63), (7, 10, 59)])
def test_common_tree_sizes_are_accepted(shape: tuple[int, int, int]) -> None:
    assert check_tree(Shape(*shape), 15, 64, 1024) == Shape(*shape)


def test_tree_deeper_than_the_context_is_refused() -> None:
    with pytest.raises(SettingError, match="tree 8,2,9: the context has 8 tokens only"):
        check_tree(Shape(8, 2, 9), 15, 64, 8)


SIZES = st.tuples(st.integers(1, 15), st.integers(1, 16), st.integers(1, 63))


def shape_of(depth: int, topk: int, nodes: int) -> Shape:
    """Of sizes that go together."""
    if topk == 1:
        return Shape.chain(depth)
    depth = min(depth, nodes, 1 + 64 // topk)
    return Shape(depth, topk, min(nodes, topk + (depth - 1) * topk**2))


@given(st.lists(SIZES, min_size=1, max_size=3), st.integers(1, 64))
def test_shape_within_a_budget_keeps_to_its_rows(
    sizes: list[tuple[int, int, int]], rows: int
) -> None:
    shapes = [shape_of(*size) for size in sizes]
    shape = Shape.covering(frozenset(shapes))
    for size in ("depth", "topk", "nodes"):
        assert getattr(shape, size) == max(getattr(one, size) for one in shapes)
    found = shape.within(rows, 64)
    assert found.nodes < max(rows, 1) and found.topk <= rows and found.head_rows <= 64
    assert found.depth <= shape.depth and found.topk <= shape.topk
    assert found.nodes <= found.topk + (found.depth - 1) * found.topk**2
    if shape.nodes < rows and shape.topk <= rows and shape.head_rows <= 64:
        assert found == shape


def test_covering_shape_of_a_tree_and_shorter_chains_is_the_tree() -> None:
    paths = Shape.of_paths(((0,), (2,), (0, 1)))
    assert Shape.covering(frozenset({Shape.chain(2), paths})) == paths
    assert Shape.covering(frozenset({Shape.chain(5), paths})) == Shape(5, 3, 5)


@given(trees(), st.integers(1, 20))
def test_paths_within_a_budget_are_still_a_tree(paths: list[tuple[int, ...]], rows: int) -> None:
    shape = Shape.of_paths(tuple(paths))
    assert (shape.nodes, shape.depth) == (len(paths), max(map(len, paths)))
    found = shape.within(rows, 64)
    assert found.nodes == min(shape.nodes, rows - 1)
    kept = set(found.paths or ())
    assert all(path[:-1] in kept or len(path) == 1 for path in kept)


@given(trees(), st.sampled_from(["{}", "choices = {}", "mc_sim = {}\n"]))
def test_path_files_of_medusa_and_eagle_are_read(paths: list[tuple[int, ...]], form: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "paths.txt"
        file.write_text(form.format(json.dumps(paths)))
        assert parse_tree(str(file)) == Shape.of_paths(tuple(paths))


@pytest.mark.parametrize(("text", "why"), [
    ("[[0], [1, 0]]", r"\[1, 0\] has no parent \[1\]"),
    ("[[0], [0]]", r"\[0\] is a duplicate or no path"),
    ("[[]]", r"\[\] is a duplicate or no path"),
    ("[[0], [-1]]", r"\[-1\] is no path: expected ranks of 0 to 15"),
    ("[[0], [16]]", r"\[16\] is no path"),
    ("[[0], [true]]", "no list of paths"),
    ("[[0], [True]]", r"\[True\] is no path"),
    ("[0, 1]", "0 is no path"),
    ("[]", "expected a list of paths"),
    ("7", "expected a list of paths"),
    ("a = 1; b = 2", "there must be one list"),
    ("[[0]", "no list of paths"),
    ("[[0], f()]", "no list of paths"),
])  # fmt: skip
def test_file_that_is_no_tree_is_refused(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "paths.txt"
    file.write_text(text)
    with pytest.raises(SettingError, match=f"paths.txt: .*{why}"):
        read_paths(file)


@pytest.mark.parametrize("text", ["6,8", "6,8,x", "no-such-file", "auto", "", "[0] " * 99])
def test_text_that_is_neither_numbers_nor_a_file_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="neither DEPTH,TOPK,NODES like 6,8,32 nor a file"):
        parse_tree(text)
