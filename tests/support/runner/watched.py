"""What a drafter proposes round by round, and what is accepted of it."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import Accepted
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Drafter, Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.decode.step import Draft
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.engine.request import Limits
from support.heads.reference_trees import ReferenceText
from support.runner.eager_executor import EagerExecutor
from support.runner.engines import decode

Path = tuple[int, ...]
Rounds = list[tuple[set[Path], Path]]


def watch(drafter: Drafter) -> Rounds:
    """Return a list that grows by each round of the first sequence: its drafts, as paths of tokens,
    and the path that was accepted."""
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
            tokens = accepted.tokens[0, : int(accepted.count)].tolist()
            rounds[-1] = (rounds[-1][0], tuple(tokens))

    methods.propose, methods.observe = proposed, observed
    return rounds


def paths(draft: Draft) -> set[Path]:
    """Return for each draft the tokens that lead to it, itself the last."""
    tokens: Sequence[int] = draft.tokens[0].tolist()
    parents = [*range(len(tokens))] if draft.parents is None else draft.parents[0].tolist()
    result: list[Path] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        result.append((*result[parent], token))
    return set(result[1:])


def rounds_of(
    executor: EagerExecutor, drafter: Drafter, shape: Shape, prompt: Sequence[int], length: int
) -> tuple[list[int], Stats, Rounds]:
    """Decode one text with a fixed shape; return its tokens, statistics and rounds."""
    rounds, running = watch(drafter), BatchState([0], executor.artifact.tail, "cpu")
    round_ = Round(TargetMethods(executor, executor.artifact), drafter, shape, running)
    output, stats = decode(round_, prompt, Limits(max_new_tokens=length, stop_ids=frozenset()))
    return output, stats, rounds


def check_rounds(
    executor: EagerExecutor, drafter: Drafter, shape: Shape, slow: ReferenceText, length: int
) -> Stats:
    """Check that drafts, acceptance and tokens are those of a slow text; return the statistics."""
    prompt = list(slow.text)
    output, stats, rounds = rounds_of(executor, drafter, shape, prompt, length)
    slow.text.append(slow.greedy(slow.text))
    while len(slow.text) < len(prompt) + length:
        slow.grow(shape)
    assert output == slow.text[len(prompt) :][:length]
    assert rounds == slow.rounds
    return stats
