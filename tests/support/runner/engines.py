"""Engines over toy models, requests to them, and what these come to."""

from collections.abc import Callable, Sequence
from typing import Literal

import pytest
from torch import Tensor

from eagle_aot.runtime_runner.adaptive.backlog import Backlog, CatchUpDrafter
from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.adaptive.costs import CostTable, MeasuredCosts
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.decode.round import Drafter, Round
from eagle_aot.runtime_runner.decode.shape import AUTO_CHAINS, AUTO_TREES, PLAIN, ChainLen, Shape
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.decode.step import StepRows
from eagle_aot.runtime_runner.decode.target import Forward
from eagle_aot.runtime_runner.engine import Engine, Failed, Finished, Limits, Request, Tokens
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.schedule import BatchSchedule, OneRound
from eagle_aot.runtime_runner.frontend.generation import Callbacks, Generation, generate
from eagle_aot.runtime_runner.program.executor import Part, Recorder
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.toy import MAX_ROWS, TAIL, ToyTarget


class ObservedTarget(ToyTarget):
    """Counts the rows of prompts, their windows and the copies of rows; fails where it should."""

    most_sequences = 100
    """Sequences that there is memory for in a forward."""
    chunk_fails_at: int | None = None
    """The position of a prompt's chunk."""
    window_fails_at: int | None = None
    """The position of a window of a prompt that is scored."""
    error: Exception = RuntimeError("a kernel\nfailed")

    def __init__(self, seed: int, longest: int, sequences: int, copies: bool = True) -> None:
        super().__init__(seed, longest, 9, sequences=sequences)
        self.can_copy_rows = copies
        self.rows, self.windows, self.copied = 0, 0, list[tuple[int, int, int]]()

    def before_chunk(self, sequence: int, chunk: Chunk) -> None:
        if chunk.start == self.chunk_fails_at:
            raise self.error
        self.rows += len(chunk)

    def verify(self, step: StepRows, moves: Tensor, *, largest_only: bool = False) -> Forward:
        is_window = step.tokens.shape[1] > TAIL
        if len(step.sequences) > self.most_sequences:
            raise self.error
        if is_window and int(step.positions[0, 0]) == self.window_fails_at:
            raise self.error
        self.windows += is_window
        return super().verify(step, moves)

    def copy_rows(self, source: Tensor, sequence: Tensor, count: int) -> None:
        super().copy_rows(source, sequence, count)
        self.copied.append((int(source), int(sequence), count))


class WaitingEngine(Engine):
    """An engine on a CPU that plans while forwards run, as one on a GPU does."""

    is_asynchronous = True


def record(step: Callable[[], Part]) -> Callable[[], Part]:
    """Record a round as an executor without graphs does: run it once."""
    step()
    return step


def rounds_over(
    target: ToyTarget,
    drafter: Drafter | None,
    recorder: Recorder | None = None,
    sampler: Sampler | None = None,
    max_step_rows: int = MAX_ROWS,
) -> Rounds:
    """Return rounds of all of a target's sequences."""
    running = BatchState(range(len(target.slots)), TAIL, "cpu", sampler)
    return Rounds(target, drafter, running, MAX_ROWS, max_step_rows, recorder)


def adaptive_schedule_over(
    rounds: Rounds, drafter: CatchUpDrafter, price: float = 1.0
) -> BatchSchedule:
    """Return a schedule of every shape; rounds with drafts cost `price` plain rounds for one
    request."""
    chooser = Chooser(CostTable())

    def alone(trees: bool) -> AdaptiveSchedule:
        backlog = Backlog(drafter, 40, rounds.batch.narrow(1))
        shapes = [*AUTO_CHAINS[1:], *(AUTO_TREES if trees else ())]
        measured = MeasuredCosts(
            positions=(0, 100),
            rounds={PLAIN: (1.0, 1.0), **dict.fromkeys(shapes, (price, price))},
            catch_up_rows=40,
            catch_up=(0.1, 4.0),
        )
        chooser.costs.restart(measured)
        drafting = [rounds.get_round(1, shape) for shape in shapes]
        return AdaptiveSchedule(
            [rounds.build_round(1, PLAIN, backlog), *drafting], backlog, chooser
        )

    return BatchSchedule(rounds, chooser, alone)


def schedule_over(rounds: Rounds) -> BatchSchedule:
    """Return a schedule for requests without automatic drafts."""

    def unmeasured(trees: bool) -> AdaptiveSchedule:
        pytest.fail("no request has automatic drafts")

    return BatchSchedule(rounds, Chooser(CostTable()), unmeasured)


def request_of(
    prompt: Sequence[int],
    max_new_tokens: int,
    chain_len: ChainLen = 4,
    stops: frozenset[int] = frozenset(),
    reuse: bool = False,
    tree: Shape | Literal["auto"] | None = None,
    sampling: SamplingParams = GREEDY,
) -> Request:
    return Request(
        prompt=tuple(prompt),
        limits=Limits(max_new_tokens=max_new_tokens, stop_ids=stops),
        chain_len=chain_len,
        reuse=reuse,
        tree=tree,
        sampling=sampling,
    )


class Requests:
    """The requests of one engine, and by their numbers the `prompts`, `tokens`, log probabilities
    of prompts (`scored`), ends, and numbers of rows that were not run (`reused`)."""

    def __init__(
        self, engine: Engine, check: Callable[[Engine], None] = lambda engine: None
    ) -> None:
        """`check` is called after each step."""
        self.engine, self.check = engine, check
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.scored: dict[int, list[TokenLogprobs]] = {}
        self.ends: dict[int, Finished] = {}
        self.reused: dict[int, int] = {}
        self.failed: dict[int, Failed] = {}

    def add(self, request: Request) -> int:
        """Add a request and return its number."""
        number = self.engine.add(request)
        self.prompts[number] = request.prompt
        self.tokens[number], self.scored[number] = [], []
        return number

    def step(self) -> None:
        """Run a step of the engine."""
        for event in self.engine.step():
            number = event.request
            assert number not in self.ends and number not in self.failed, "after its end"
            if isinstance(event, Tokens):
                self.tokens[number] += event.tokens
            elif isinstance(event, Finished):
                self.ends[number], self.reused[number] = event, event.reused
            elif isinstance(event, Failed):
                self.failed[number] = event
            else:
                self.scored[number] += event.logprobs
        self.check(self.engine)

    def step_until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self.engine.busy
            self.step()

    def finish(self) -> None:
        """Run steps until no request is left."""
        while self.engine.busy:
            self.step()

    def text(self, number: int) -> list[int]:
        """Return a prompt with its answer so far."""
        return [*self.prompts[number], *self.tokens[number]]


def decode(
    round_: Round,
    prompt: Sequence[int],
    limits: Limits,
    on_tokens: Callable[[list[int]], None] = lambda run: None,
) -> tuple[list[int], Stats]:
    """Decode one text with the same round; return its tokens and statistics."""
    tree = None if round_.shape.is_chain else round_.shape
    request = Request(prompt=tuple(prompt), limits=limits, chain_len=round_.chain_len, tree=tree)
    generation = Generation(request=request, callbacks=Callbacks(on_tokens))
    result = generate(Engine(OneRound(round_)), generation)
    return result.token_ids, result.stats
