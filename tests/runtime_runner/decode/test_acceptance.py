"""Accepted paths equal those of a walk from the root, node by node."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle_aot.runtime_runner.decode.acceptance import Accepted, accept
from eagle_aot.runtime_runner.decode.step import Draft, chain_rows, rows_after
from support.runner.toy import TAIL, tree_of


def accepted(drafts: list[int], choices: list[int], parents: list[int] | None = None) -> Accepted:
    """Return what one sequence accepts, whose bonus is at position 5."""
    chain = Draft(torch.tensor([drafts], dtype=torch.int64))
    draft = chain if parents is None else tree_of([drafts], [parents])
    bonus, first = torch.tensor([[99]]), torch.tensor([5])
    step = rows_after(bonus, first, torch.tensor([0]), draft, TAIL)
    return accept(step, torch.tensor([choices]))


@pytest.mark.parametrize(("drafts", "greedy", "count"), [
    ([], [7], 0),
    ([31, 32, 33], [31, 40, 5, 6], 1),
    ([31, 32, 33], [30, 32, 33, 6], 0),
    ([31, 32, 33], [31, 32, 33, 6], 3),
    ([31, 32, 33], [31, 32, 9, 6], 2),
])  # fmt: skip
def test_leading_matches_count(drafts: list[int], greedy: list[int], count: int) -> None:
    found = accepted(drafts, greedy)
    assert (found.count.tolist(), found.last_token.tolist()) == ([count], [[greedy[count]]])
    assert found.tokens[0, : count + 1].tolist() == greedy[: count + 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=15), st.integers(0, 2))
def test_chain_accepts_the_longest_common_prefix(pairs: list[tuple[int, int]], bonus: int) -> None:
    drafts, greedy = [d for d, _ in pairs], [g for _, g in pairs] + [bonus]
    count = int(accepted(drafts, greedy).count)
    assert drafts[:count] == greedy[:count]
    assert count == len(drafts) or drafts[count] != greedy[count]


def test_a_text_with_fewer_rows_than_others_accepts_no_others() -> None:
    tokens, further = torch.tensor([[99, 31, 32, 33]] * 3), torch.tensor([3, 1, 0])
    step = chain_rows(tokens, torch.tensor([5, 0, 7]), torch.arange(3), TAIL, further)
    assert accept(step, torch.tensor([[31, 32, 33, 6]] * 3)).count.tolist() == [3, 1, 0]


@given(st.data())
def test_tree_accepts_the_path_of_the_targets_choices(data: st.DataObject) -> None:
    parents: list[int] = []
    tokens: list[int] = []
    depth = [0]
    for _ in range(data.draw(st.integers(1, 30))):
        row = data.draw(st.sampled_from([r for r, d in enumerate(depth) if d < TAIL - 1]))
        siblings = {t for t, p in zip(tokens, parents, strict=True) if p == row}
        tokens.append(data.draw(st.sampled_from(sorted(set(range(40)) - siblings)[:3])))
        parents.append(row)
        depth.append(depth[row] + 1)
    choices = data.draw(
        st.lists(st.integers(0, 3), min_size=len(tokens) + 1, max_size=len(tokens) + 1)
    )
    path = [0]
    while True:
        children = [i + 1 for i, (t, p) in enumerate(zip(tokens, parents, strict=True))
                  if p == path[-1] and t == choices[path[-1]]]  # fmt: skip
        if not children:
            break
        path.append(children[0])
    found = accepted(tokens, choices, parents)
    count = int(found.count)
    assert found.rows[0, : count + 1].tolist() == path
    assert found.tokens[0, : count + 1].tolist() == [choices[row] for row in path]
    assert found.ranks is not None and found.offered_ranks is not None
    ranks = [parents[: row - 1].count(parents[row - 1]) for row in path[1:]]
    assert found.ranks[0, : count + 1].tolist() == [0, *ranks]
    offered_ranks = [(1 << parents.count(row)) - 1 for row in path]
    assert found.offered_ranks[0, : count + 1].tolist() == offered_ranks
    slots = [5, *(5 + TAIL + row - 1 for row in path[1:])]
    assert found.slots[0, : count + 1].tolist() == slots
