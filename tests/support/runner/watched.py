"""What a drafter proposes round by round, and what is accepted of it."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.round import BatchState, Drafter
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft

Path = tuple[int, ...]
Rounds = list[tuple[set[Path], Path]]


def watch(drafter: Drafter) -> Rounds:
    """The drafts of each round from now on, as paths of tokens, and what was accepted of them: of
    the first sequence, in a list that grows."""
    rounds: Rounds = []
    methods: Any = drafter
    propose, observe = drafter.propose, drafter.observe

    def proposed(running: BatchState, shape: Shape) -> Draft:
        draft = propose(running, shape)
        rounds.append((paths(draft), ()))
        return draft

    def observed(accepted: Accepted, features: Tensor) -> None:
        observe(accepted, features)
        if rounds:
            taken = accepted.tokens[0, : int(accepted.count)].tolist()
            rounds[-1] = (rounds[-1][0], tuple(taken))

    methods.propose, methods.observe = proposed, observed
    return rounds


def paths(draft: Draft) -> set[Path]:
    """Of each draft the tokens that lead to it, itself the last."""
    tokens: Sequence[int] = draft.tokens[0].tolist()
    parents = [*range(len(tokens))] if draft.parents is None else draft.parents[0].tolist()
    found: list[Path] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*found[parent], token))
    return set(found[1:])
