"""The engine: continuous batching of requests over one artifact.

A request waits for a free sequence, runs its prompt chunk by chunk, joins the rounds of the
others, and leaves. None of its tokens depends on other requests: a row does not depend on its
neighbours, and a prompt is cut by its length alone. `Engine._run_round` is the speculative loop,
and `Round.step` in decode/round.py one round of it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from eagle_aot.common.errors import EagleError, SettingError
from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.decode.prompt_scoring import PromptScoring
from eagle_aot.runtime_runner.engine.request import (
    Event,
    Failed,
    Request,
    RequestId,
    Scored,
    Tokens,
)
from eagle_aot.runtime_runner.engine.running_request import RunningRequest
from eagle_aot.runtime_runner.engine.schedule import Schedule
from eagle_aot.runtime_runner.engine.sequence_pool import PrefixQuery, SequencePool
from eagle_aot.runtime_runner.engine.turns import Launches, PrefixSharing, PromptShare, PromptTurns
from eagle_aot.runtime_runner.program.cache_pages import CachePages, no_memory

PROMPT_SHARE = 0.45
"""A running request then takes less than twice its time while a long prompt runs. At 0.5 it would
take a little more than twice, since nothing is earned for the last chunk."""


class Engine:
    """Serves requests together. One thread calls `step`; any thread may call `add` and `cancel`.

    The `running` requests are the first sequences of the batch state, in the same order.
    """

    def __init__(
        self,
        schedule: Schedule,
        prompt_share: float = PROMPT_SHARE,
        *,
        reuse: bool = True,
        pages: CachePages | None = None,
    ) -> None:
        """Serve with the rounds of `schedule`.

        `prompt_share` is the part of the time that prompts may take from running requests. Without
        `reuse`, no request reuses cached rows, whatever it requests. `pages` is what the sequences
        share of memory, None if each has its own. Raises SettingError unless the share is between 0
        and 1.
        """
        if not 0 < prompt_share < 1:
            raise SettingError(f"prompt share {prompt_share}: must be between 0 and 1")
        self.schedule, self._reuse, self.launches = schedule, reuse, Launches()
        self._pages, self._is_full = pages, False
        self._reset_sequences()
        self.waiting: deque[RunningRequest] = deque()
        self.prefilling: list[RunningRequest] = []
        self.running: list[RunningRequest] = []
        self.has_thread = False
        """Whether a thread of its own calls `step`, so that nothing else may."""
        self.on_launched: Callable[[], None] = lambda: None
        """Called after each launch, before its result is read."""
        self._share, self._turns = PromptShare(prompt_share), PromptTurns()
        self._next_id = 0
        self._lock = threading.Lock()
        self._added: list[RunningRequest] = []
        self._cancelled: set[RequestId] = set()

    def _reset_sequences(self) -> None:
        """Free all sequences and forget what they hold."""
        self.sequence_pool = SequencePool(self.schedule.batch, self.schedule.target, self._pages)
        self._prefix_sharing = PrefixSharing(self.schedule, self.sequence_pool)

    def add(self, request: Request) -> RequestId:
        """Queue a request that fits the artifact."""
        if not self._reuse:
            request = replace(request, reuse=False)
        with self._lock:
            added = RunningRequest(self._next_id, request)
            self._added.append(added)
            self._next_id += 1
        return added.request_id

    def cancel(self, request: RequestId) -> None:
        """End a request before the next step. Unknown and ended requests are ignored."""
        with self._lock:
            if request < self._next_id:
                self._cancelled.add(request)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        with self._lock:
            return bool(self._added or self.waiting or self.prefilling or self.running)

    @property
    def is_asynchronous(self) -> bool:
        """Whether this thread waits for forwards that run on a device."""
        return self.schedule.batch.bonus.is_cuda

    def abandon(self) -> None:
        """End all requests at once without events, after a step that was interrupted."""
        with self._lock:
            self._added, self._cancelled = [], set()
        self.waiting.clear()
        self.prefilling, self.running = [], []
        self.schedule.batch.position.fill_(-1)
        self.schedule.batch.sampler.clear()
        self._reset_sequences()
        self._share.reset()

    def step(self) -> list[Event]:
        """Run a prompt chunk, a scored window of a prompt, or a round of all running requests.

        Returns the events.
        """
        events = self._apply_calls() + self._admit()
        self._make_room()
        if self.prefilling and (not self.running or self._share.due):
            events += self._run_prompt()
        elif self.running:
            events += self._attempt(list(self.running), self._run_round, self._share.add_round)
        return events

    def _apply_calls(self) -> list[Event]:
        """Apply the calls of `add` and `cancel` since the last step."""
        with self._lock:
            self.waiting += self._added
            cancelled, self._cancelled = self._cancelled, set()
            self._added = []
        requests = [*self.waiting, *self.prefilling, *self.running]
        return [self._cancel(request) for request in requests if request.request_id in cancelled]

    def _admit(self) -> list[Event]:
        """Give free sequences to waiting requests in their order, as far as there is memory.
        Returns the failures."""
        failed = list[Event]()
        while self.waiting and self.sequence_pool.free and not self._is_full:
            request = self.waiting[0]
            if not self._allocate(request):
                if self.prefilling or self.running:
                    self._is_full = True
                else:
                    failed.append(self._fail(request, no_memory(request.length)))
                continue
            self.waiting.popleft()
            self.prefilling.append(request)
            try:
                request.scoring = self._prompt_scoring(request)
                request.prefill = self._prefill(request)
                self._prefix_sharing.copy_prefix(request)
            except BaseException as error:  # of its parameters, or of memory for them
                failed.append(self._fail(request, error))
        return failed

    def _make_room(self) -> None:
        """Get memory for what the running requests will add, the oldest first.

        Where it is too small, the youngest request gives up its own and waits to run again.
        """
        for request in sorted(self.running, key=lambda request: request.request_id):
            while request.sequence is not None:
                if self.sequence_pool.hold(request.sequence, request.length):
                    break
                self._preempt(max(self.prefilling + self.running, key=lambda r: r.request_id))

    def _preempt(self, request: RunningRequest) -> None:
        self.waiting.appendleft(request.again())
        self._leave(request)
        self._is_full = bool(self.prefilling or self.running)  # until one of these has ended
        self.launches.preemptions += 1

    def _allocate(self, request: RunningRequest) -> bool:
        """Give a request a sequence. Returns whether there is memory for its text so far."""
        query = PrefixQuery.of(request.request, self.schedule.drafter)
        scored = request.request.sampling.prompt_logprobs is not None  # overwrites cached rows
        reuse = request.request.reuse and not scored
        allocated = self.sequence_pool.allocate(query, reuse, request.contents, request.length)
        if allocated is not None:
            request.start(*allocated)
        return allocated is not None

    def _prompt_scoring(self, request: RunningRequest) -> PromptScoring | None:
        num_logprobs = request.request.sampling.prompt_logprobs
        if num_logprobs is None:
            return None
        assert request.sequence is not None
        sequence = self.sequence_pool.tensor(request.sequence)
        return PromptScoring(self.schedule.target, request.request.prompt, sequence, num_logprobs)

    def _prefill(self, running: RunningRequest) -> Prefill:
        assert running.sequence is not None
        request, schedule = running.request, self.schedule
        sampler, limits = schedule.batch.sampler, request.limits
        sampler.begin(
            running.sequence,
            request.sampling,
            request.prompt,
            limits.max_new_tokens,
            limits.stop_ids,
            request.constraint,
        )
        return Prefill(
            schedule.target,
            None if request.is_plain else schedule.drafter,
            request.prompt,
            self.sequence_pool.tensor(running.sequence),
            running.reused,
            sampler,
            request.images,
        )

    def _run_prompt(self) -> list[Event]:
        turn = self._turns.next(self.prefilling)
        request = self._prefix_sharing.first_to_run(turn, self.prefilling)
        run = self._run_chunk if request.scoring is None else self._run_window
        return self._attempt([request], lambda: run(request), self._share.add_chunk)

    def _run_window(self, request: RunningRequest) -> list[Event]:
        with self.launches.chunk():
            scored = request.score_window()
            self.on_launched()
        return self._events(request, scored)

    def _run_chunk(self, request: RunningRequest) -> list[Event]:
        self._prefix_sharing.copy_prefix(request)
        assert request.prefill is not None and request.sequence is not None
        chunk = request.prefill.next_chunk
        with self.launches.chunk():
            bonus = request.run_chunk()
            if not chunk.few_rows:
                self.sequence_pool.kept_states.keep(request.sequence, chunk.stop)
            self.on_launched()
            first = int(bonus)  # waits for the device, so that the chunk's time is its own
        if request.prompt_left:
            return []
        try:
            tokens = request.begin(first, request.prefill.logprobs)
        except BaseException as error:  # of the request's callback `is_stop`
            return [self._fail(request, error)]
        self.prefilling.remove(request)
        self._join(request, bonus)
        return self._events(request, tokens)

    def _run_round(self) -> list[Event]:
        requests = list(self.running)
        recordings = self.schedule.recordings
        round_, started = self.schedule.choose(requests), time.perf_counter()
        drafter_observed = round_.drafter is self.schedule.drafter  # neither None nor a backlog
        with self.launches.round():
            packed = round_.run()
            if self.is_asynchronous:
                self.schedule.plan_next(requests)
            self.on_launched()
            outcomes = round_.outcomes(packed)
        decoded, events = [], list[Event]()
        for request, outcome in zip(requests, outcomes, strict=False):
            try:
                tokens = request.add_round(round_.shape, outcome, drafter_observed=drafter_observed)
            except BaseException as error:  # of its `is_stop`: the others keep their tokens
                events.append(self._fail(request, error))
                continue
            decoded.append((outcome, tokens.tokens))
            events += self._events(request, tokens)
        if len(decoded) == len(requests):
            seconds = time.perf_counter() - started
            timed = recordings == self.schedule.recordings  # recording a round takes longer
            self.schedule.observe(round_, decoded, seconds if timed else None)
        return events

    def _attempt(
        self,
        requests: list[RunningRequest],
        call: Callable[[], list[Event]],
        account: Callable[[float], None],
    ) -> list[Event]:
        """Run a forward; if it fails, end the requests that it was for."""
        started = time.perf_counter()
        try:
            events = call()
        except (EagleError, RuntimeError, MemoryError) as error:
            failed = [self._fail(r, error) for r in requests if r.sequence is not None]
            if self.is_asynchronous:
                self.schedule.batch.bonus.cpu()  # raises where no forward can run any more
            return failed
        if self.prefilling and self.running:
            account(time.perf_counter() - started)
        else:
            self._share.reset()
        return events

    def _events(self, request: RunningRequest, event: Tokens | Scored) -> list[Event]:
        unsent = request.unsent(event)
        events: list[Event] = [] if unsent is None else [unsent]
        if request.ended is not None:
            events.append(request.finished(request.ended))
            self._leave(request)
        return events

    def _cancel(self, request: RunningRequest) -> Event:
        event = request.finished("cancelled")
        self._leave(request)
        return event

    def _fail(self, request: RunningRequest, error: BaseException) -> Event:
        failed = Failed.of(request.request_id, error)
        self._leave(request, reusable=False)
        return failed

    def _join(self, request: RunningRequest, bonus: Tensor) -> None:
        """Move a request whose prompt is done after the running ones."""
        assert request.sequence is not None
        index = len(self.running)
        self.sequence_pool.move_to(request.sequence, index)
        self.running.append(request)
        batch = self.schedule.batch
        batch.place(bonus, request.position, index)
        batch.limit_drafts(request.request.max_shape, index)

    def _leave(self, request: RunningRequest, *, reusable: bool = True) -> None:
        """Remove a request. The last running request takes its place in the batch."""
        self._is_full = False
        if request in self.running:
            index, last = self.running.index(request), self.running[-1]
            assert last.sequence is not None
            self.schedule.batch.stop(index)
            self.sequence_pool.move_to(last.sequence, index)
            self.running[index] = last
            self.running.pop()
        elif request in self.prefilling:
            self.prefilling.remove(request)
        else:
            self.waiting.remove(request)
        if request.sequence is not None:
            self.schedule.batch.sampler.end(request.sequence)
            self.sequence_pool.release(request.sequence, reusable=reusable)
        request.sequence = request.scoring = request.prefill = None
