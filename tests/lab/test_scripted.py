"""Scripted drafts are right in the chosen number of places, and wrong elsewhere."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.lab.scripted import ScriptedDrafter, script
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape

TEXT = list(range(3, 60))


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Chains, and trees that fit a step."""
    depth, topk = draw(st.integers(1, 7)), draw(st.integers(1, 8))
    if topk == 1:
        return Shape.chain(depth)
    most = min(63, topk + (depth - 1) * topk**2)
    return Shape(depth, topk, draw(st.integers(depth, most)))


@given(shapes())
def test_tree_has_its_nodes_and_a_path_of_its_depth(shape: Shape) -> None:
    right_path, paths = script(shape)
    assert len(set(paths)) == len(paths) == shape.nodes
    assert len(right_path) == shape.depth and set(paths) >= {
        right_path[: i + 1] for i in range(shape.depth)
    }
    for row, path in enumerate(paths):
        assert path[-1] < shape.topk and path[:-1] in [(), *paths[:row]]


@given(shapes(), st.integers(0, 8), st.integers(0, 20))
def test_leading_drafts_of_one_path_are_right_and_all_others_wrong(
    shape: Shape, right: int, decided: int
) -> None:
    drafter = ScriptedDrafter(0, TEXT, lambda n: 0 * n + right)
    drafter.decided.fill_(decided)
    draft = drafter.propose(BatchState([0], 16, "cpu"), shape)
    right_path, paths = script(shape)
    tokens = dict(zip(paths, draft.tokens[0].tolist(), strict=True))
    for path, token in tokens.items():
        follows = TEXT[decided + len(path) - 1]
        is_right = path == right_path[: len(path)] and len(path) <= right
        assert (token == follows) == is_right
        siblings = [other for other in paths if other[:-1] == path[:-1]]
        assert len({tokens[other] for other in siblings}) == len(siblings)
    if draft.parents is not None:
        rows = [(), *paths]
        assert [rows[row] for row in draft.parents[0].tolist()] == [p[:-1] for p in paths]
    assert torch.equal(draft.tokens, drafter.propose(BatchState([0], 16, "cpu"), shape).tokens)
