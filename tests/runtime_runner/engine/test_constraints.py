"""Answers with constraints over a toy model: one text in any rounds, also where their parts are
recorded one by one, as on a GPU."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine import Engine, Request
from eagle_aot.runtime_runner.program.executor import Part, Recorder
from eagle_aot.runtime_runner.sampling import token_masks
from eagle_aot.runtime_runner.sampling.constraint import ConstraintError, DraftRows
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from eagle_aot.runtime_runner.sampling.token_masks import CALM
from support.runner.engines import Requests, request_of, rounds_over, schedule_over
from support.runner.text_memory import paged
from support.runner.toy import VOCAB, SeeingDrafter, ToyTarget, next_token

SEED = 7
POISON = -77
STRUCTURE: dict[str, Any] = {"regex": "any"}  # the constraint decides, this selects the mode
GREEDILY: dict[str, Any] = {}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 5}
TREE = Shape(3, 3, 9)


def allowed_after(answer: Sequence[int]) -> list[int]:
    """Return what may follow an answer: often one token alone."""
    last = answer[-1] if answer else 3
    first = (5 * len(answer) + last) % VOCAB
    return (
        [first] if len(answer) % 5 in (1, 2) else [first, (first + 3) % VOCAB, (first + 8) % VOCAB]
    )


class ToyConstraint:
    """Allows what `allowed_after` says."""

    def __init__(self) -> None:
        self.answer: list[int] = []
        self.repairs = 0

    def advance(self, token: int) -> None:
        if token not in allowed_after(self.answer):
            raise ConstraintError(f"{token} after {self.answer}")
        self.answer.append(token)

    def restart(self) -> None:
        self.answer.clear()

    def look_ahead(self, bitmask: Tensor | None) -> list[int]:
        if bitmask is not None:
            self.fill(DraftRows([0], [[]]), bitmask.unsqueeze(0))
        forced, answer = list[int](), [*self.answer]
        while len(allowed := allowed_after(answer)) == 1:
            forced += allowed
            answer += allowed
        return forced

    def repair(self, rows: DraftRows) -> bool:
        changed = False
        for row, path in self._paths(rows):
            children, allowed = rows.children[row], allowed_after(path)
            drafts = [rows.tokens[child] for child in children]
            if drafts and len(allowed) == 1 and allowed[0] not in drafts:
                rows.tokens[children[0]] = allowed[0]
                changed = True
        self.repairs += changed
        return changed

    def fill(self, rows: DraftRows, bitmask: Tensor) -> None:
        for row, path in self._paths(rows):
            bits = sum(1 << token for token in allowed_after(path))
            bitmask[row] = torch.tensor(list(bits.to_bytes(bitmask.shape[1], "little")))

    def _paths(self, rows: DraftRows) -> Any:
        left = [(0, self.answer)]
        for row, path in left:  # grows
            yield row, path
            allowed = allowed_after(path)
            for child in rows.children[row]:
                if rows.tokens[child] in allowed:
                    left.append((child, [*path, rows.tokens[child]]))


class Graphs:
    """Records as CUDA graphs do: what a recording returns is always in the same tensors, without
    values before the first replay, and a replay does what was recorded."""

    def __init__(self) -> None:
        self.recorded = 0

    def record(self, step: Callable[[], Part]) -> Callable[[], Part]:
        self.recorded += 1
        warm, result = tensors_of(step()), step()
        kept = [x for x, old in zip(tensors_of(result), warm, strict=True) if is_new(x, old)]
        for tensor in kept:
            tensor.fill_(POISON)

        def replay() -> Part:
            new = [x for x, old in zip(tensors_of(step()), warm, strict=True) if is_new(x, old)]
            for tensor, value in zip(kept, new, strict=True):
                tensor.copy_(value)
            return result

        return replay


def is_new(tensor: Tensor, other: Tensor) -> bool:
    """Whether a step made a tensor, which returned `other` in another run."""
    return tensor.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()


def tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value if isinstance(value, tuple) else ()
    if is_dataclass(value):
        parts = tuple(getattr(value, field.name) for field in fields(value))
    return [tensor for part in parts for tensor in tensors_of(part)]


def engine_of(
    sequences: int,
    recorder: Recorder | None = None,
    pattern: Sequence[bool] = (True, True, False),
    memory: int | None = None,
) -> Engine:
    target = ToyTarget(SEED, 16, 9, sequences=sequences)
    pages = None if memory is None else paged(target, memory)
    sampler = Sampler(sequences, "cpu", length=400, vocab=VOCAB)
    drafter = SeeingDrafter(target, pattern)
    schedule = schedule_over(rounds_over(target, drafter, recorder, sampler))
    return Engine(schedule, pages=pages)


def constrained(
    prompt: Sequence[int], chain_len: int = 0, tree: Shape | None = None, **sampling: Any
) -> Request:
    """Return a request whose constraint follows each of its tokens, as a runner's does."""
    params = SamplingParams(**STRUCTURE, **sampling)
    request = request_of(prompt, 40, chain_len, tree=tree, sampling=params)
    constraint = ToyConstraint()

    def is_stop(token: int) -> bool:
        constraint.advance(token)
        return False

    limits = replace(request.limits, is_stop=is_stop)
    return replace(request, limits=limits, constraint=constraint)


def answers(engine: Engine, *added: Request) -> list[list[int]]:
    """Return the answers of requests that run together."""
    requests = Requests(engine)
    numbers = [requests.add(request) for request in added]
    requests.finish()
    assert not requests.failed
    return [requests.tokens[number] for number in numbers]


def expected(prompt: Sequence[int]) -> list[int]:
    """Return the greedy answer: the model's token if it is allowed, else the first that is."""
    answer: list[int] = []
    while len(answer) < 40:
        token, allowed = next_token([*prompt, *answer], SEED), allowed_after(answer)
        answer.append(token if token in allowed else min(allowed))
    return answer


def test_an_answer_that_runs_again_has_its_form() -> None:
    engine = engine_of(5, memory=0)
    prompts = [[i] for i in range(5)]
    added = [constrained(prompt, 4 if prompt[0] % 2 else 0) for prompt in prompts]
    assert answers(engine, *added) == [expected(prompt) for prompt in prompts]
    assert engine.launches.preemptions > 0


@pytest.mark.parametrize(("is_recorded", "calm"), [(False, CALM), (True, CALM), (True, 0)])
@pytest.mark.parametrize("sampling", [GREEDILY, SAMPLED])
@pytest.mark.parametrize("pattern", [(True, True, False), (False,)], ids=["likely", "hostile"])
def test_no_draft_changes_an_answer(
    is_recorded: bool,
    calm: int,
    sampling: dict[str, Any],
    pattern: Sequence[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a drafter that is often right, and of one that is always wrong; also where rounds never
    wait for drafts to be replaced."""
    monkeypatch.setattr(token_masks, "CALM", calm)
    prompt = [3, 1, 4, 1, 5]
    (plain,) = answers(engine_of(1), constrained(prompt, **sampling))
    assert sampling or plain == expected(prompt)
    for drafts in [{"chain_len": k} for k in (0, 1, 4, 7)] + [{"tree": TREE}]:
        graphs = Graphs()
        engine = engine_of(1, graphs.record if is_recorded else None, pattern)
        request = constrained(prompt, **drafts, **sampling)
        assert answers(engine, request) == [plain]
        assert isinstance(request.constraint, ToyConstraint)
        assert (request.constraint.repairs > 0) == (drafts != {"chain_len": 0})
        assert not is_recorded or graphs.recorded == 3  # the parts of one round


@pytest.mark.parametrize(("is_recorded", "calm"), [(False, CALM), (True, CALM), (True, 0)])
def test_neighbours_have_their_own_masks(
    is_recorded: bool, calm: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests join and leave batches of three, with a free one among them in each order."""
    monkeypatch.setattr(token_masks, "CALM", calm)
    prompts = [[1], [2, 2], [3, 3, 3]]
    alone = [expected(prompt) for prompt in prompts]
    (free,) = answers(engine_of(1), request_of([9, 9], 60))
    for order in itertools.permutations(range(4)):
        engine = engine_of(3, Graphs().record if is_recorded else None)
        added = [request_of([9, 9], 60) if i == 3 else constrained(prompts[i], 4) for i in order]
        found = answers(engine, *added)
        assert found == [free if i == 3 else alone[i] for i in order]
        assert answers(engine, request_of([9, 9], 60)) == [free]


def test_tokens_that_must_come_are_accepted_drafts() -> None:
    """The drafter is always wrong, and every draft that is forced is right."""
    engine = engine_of(1, pattern=[False])
    requests = Requests(engine)
    number = requests.add(constrained([3, 1, 4, 1, 5], 1))
    requests.finish()
    assert requests.ends[number].stats.accepted >= 8  # of the 16 forced tokens, every second


@pytest.mark.parametrize("steps", range(0, 16, 3))
def test_an_answer_may_be_cancelled_at_any_point(steps: int) -> None:
    """Its neighbours keep their texts, and no constraint is left."""
    prompts = [[1], [2, 2]]
    engine = engine_of(3, Graphs().record)
    requests = Requests(engine)
    kept = requests.add(constrained(prompts[0], 4))
    cancelled = requests.add(constrained(prompts[1], 0, TREE))
    free = requests.add(request_of([9, 9], 60))
    for _ in range(steps):
        requests.step()
    engine.cancel(cancelled)
    requests.finish()
    assert requests.ends[cancelled].reason == "cancelled"
    assert requests.tokens[kept] == expected(prompts[0])
    assert requests.tokens[cancelled] == expected(prompts[1])[: len(requests.tokens[cancelled])]
    assert [requests.tokens[free]] == answers(engine_of(1), request_of([9, 9], 60))
    assert not engine.schedule.batch.sampler.is_constrained
