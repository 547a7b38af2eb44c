"""The engine: sequences that come and go over one artifact.

A request waits for a free sequence, runs its prompt chunk by chunk, joins the rounds of the others,
and leaves. None of its tokens depends on who else is there: a row does not feel its neighbours, and
a prompt is cut by its length alone.
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
from eagle_aot.runtime_runner.engine.cache_slots import CacheSlots, PrefixQuery
from eagle_aot.runtime_runner.engine.launches import Launches
from eagle_aot.runtime_runner.engine.prefix_sharing import PrefixSharing
from eagle_aot.runtime_runner.engine.request import (
    Event,
    Failed,
    Request,
    RequestId,
    Scored,
    Tokens,
    reason,
)
from eagle_aot.runtime_runner.engine.running_request import RunningRequest
from eagle_aot.runtime_runner.engine.schedule import Schedule
from eagle_aot.runtime_runner.engine.turns import PromptShare, PromptTurns

PROMPT_SHARE = 0.45
"""A text beside a long prompt then takes less than twice its time. A half would give twice and a
little more, since nothing is earned for the last chunk."""


class Engine:
    """Texts side by side. One thread calls `step`; `add` and `cancel` may come from any.

    Those that run are at the first places of the sequences, in the order of `running`.
    """

    def __init__(
        self, schedule: Schedule, prompt_share: float = PROMPT_SHARE, *, reuse: bool = True
    ) -> None:
        """`prompt_share` is how much of the time prompts may take from texts that run. Without
        `reuse` no request goes on from rows that a cache holds, whatever it asks for. Raises
        SettingError unless the share is between 0 and 1."""
        if not 0 < prompt_share < 1:
            raise SettingError(f"prompt share {prompt_share}: must be between 0 and 1")
        self.schedule, self._reuse, self.forwards = schedule, reuse, Launches()
        self._begin_anew()
        self.waiting: deque[RunningRequest] = deque()
        self.prompts: list[RunningRequest] = []
        self.running: list[RunningRequest] = []
        self.after_step: Callable[[Engine], None] = lambda engine: None
        """For checks."""
        self.meanwhile: Callable[[], None] = lambda: None
        """Called in each step that has a forward: where this thread `waits` for it, once it is
        under way."""
        self._share, self._turns = PromptShare(prompt_share), PromptTurns()
        self._added_ever = 0
        self._lock = threading.Lock()
        self._added: list[RunningRequest] = []
        self._cancelled: set[RequestId] = set()

    def _begin_anew(self) -> None:
        """All sequences are free, and nothing is known of what they hold."""
        self.sequences = CacheSlots(self.schedule.running, self.schedule.target)
        self._prefixes = PrefixSharing(self.schedule, self.sequences)

    def add(self, request: Request) -> RequestId:
        """Queue a request, which is known to fit."""
        if not self._reuse:
            request = replace(request, reuse=False)
        with self._lock:
            text = RunningRequest(self._added_ever, request)
            self._added.append(text)
            self._added_ever += 1
        return text.number

    def cancel(self, request: RequestId) -> None:
        """End a request before the next step; nothing happens where it has ended already, or was
        never there."""
        with self._lock:
            if request < self._added_ever:
                self._cancelled.add(request)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        with self._lock:
            return bool(self._added or self.waiting or self.prompts or self.running)

    @property
    def waits(self) -> bool:
        """Whether forwards run elsewhere while this thread waits for their tokens."""
        return self.schedule.running.bonus.is_cuda

    def abandon(self) -> None:
        """End all requests at once, without events: behind a step that was interrupted."""
        with self._lock:
            self._added, self._cancelled = [], set()
        self.waiting.clear()
        self.prompts, self.running = [], []
        self.schedule.running.position.fill_(-1)
        self.schedule.running.sampler.clear()
        self._begin_anew()
        self._share.reset()

    def step(self) -> list[Event]:
        """One chunk of a prompt, or one window that is scored of it, or one round of all texts that
        run, and what came of it."""
        events = self._take_orders() + self._admit()
        if self.prompts and (not self.running or self._share.due):
            events += self._run_chunk()
        elif self.running:
            events += self._run_round()
        self.after_step(self)
        return events

    def _take_orders(self) -> list[Event]:
        with self._lock:
            self.waiting += self._added
            cancelled, self._cancelled = self._cancelled, set()
            self._added = []
        texts = [*self.waiting, *self.prompts, *self.running]
        return [self._cancel(text) for text in texts if text.number in cancelled]

    def _admit(self) -> list[Event]:
        """Give free sequences to those who wait, the first first. Returns what failed of it."""
        failed = list[Event]()
        while self.waiting and self.sequences.free:
            text = self.waiting.popleft()
            wanted = PrefixQuery.by(text.request, self.schedule.drafter)
            scored = text.request.sampling.prompt_logprobs is not None  # overwrites what is there
            reuse = text.request.reuse and not scored
            text.start(*self.sequences.take(wanted, reuse, text.left))
            self.prompts.append(text)
            try:
                text.scoring = self._prompt_scoring(text)
                text.run = self._prompt_run(text)
                self._prefixes.take_over(text)
            except Exception as error:  # of its own parameters, or no memory for them
                failed.append(self._fail(text, error))
        return failed

    def _prompt_scoring(self, text: RunningRequest) -> PromptScoring | None:
        request, most = text.request, text.request.sampling.prompt_logprobs
        if most is None:
            return None
        assert text.sequence is not None
        where = self.sequences.cache(text.sequence)
        return PromptScoring(self.schedule.target, request.prompt, where, most)

    def _prompt_run(self, text: RunningRequest) -> Prefill:
        assert text.sequence is not None
        request, schedule = text.request, self.schedule
        drafter = None if request.is_plain else schedule.drafter
        sampler, limits = schedule.running.sampler, request.limits
        how = request.sampling, request.prompt, limits.room, limits.stop_ids
        sampler.begin(text.sequence, *how)
        where = self.sequences.cache(text.sequence)
        how_far = where, text.kept, sampler, request.pictures
        return Prefill(schedule.target, drafter, request.prompt, *how_far)

    def _run_chunk(self) -> list[Event]:
        text = self._prefixes.ahead(self._turns.next(self.prompts), self.prompts)
        run = self._chunk if text.scoring is None else self._window
        return self._attempt([text], lambda: run(text), self._share.add_chunk)

    def _window(self, text: RunningRequest) -> list[Event]:
        with self.forwards.chunk():
            told = text.score()
            self.meanwhile()
        return self._told(text, told)

    def _chunk(self, text: RunningRequest) -> list[Event]:
        self._prefixes.take_over(text)
        with self.forwards.chunk():
            bonus = text.read()
            self.meanwhile()
            first = int(bonus)  # waits for the device: the chunk's time is its own
        if text.prompt_left:
            return []
        assert text.run is not None
        try:
            told = text.begin(first, text.run.logprobs)
        except Exception as error:  # of its own `ends`
            return [self._fail(text, error)]
        self.prompts.remove(text)
        self._join(text, bonus)
        return self._told(text, told)

    def _run_round(self) -> list[Event]:
        return self._attempt(list(self.running), self._round, self._share.add_round)

    def _round(self) -> list[Event]:
        texts = list(self.running)
        started, recordings = time.perf_counter(), self.schedule.recordings
        round_ = self.schedule.choose(texts)
        shown = round_.drafter is self.schedule.drafter  # and not nobody, or who stands in for it
        with self.forwards.round():
            played = round_.play()
            if self.waits:
                self.schedule.think(texts)
            self.meanwhile()
            outcomes = round_.outcomes(played)
        found, events = [], list[Event]()
        for text, outcome in zip(texts, outcomes, strict=False):
            try:
                told = text.add(round_.shape, outcome, shown=shown)
            except Exception as error:  # of its own `ends`: the others have their tokens
                events.append(self._fail(text, error))
                continue
            found.append((outcome, told.tokens))
            events += self._told(text, told)
        if len(found) == len(texts):
            seconds = time.perf_counter() - started
            alone = recordings == self.schedule.recordings
            self.schedule.observe(round_, found, seconds if alone else None)
        return events

    def _attempt(
        self,
        texts: list[RunningRequest],
        call: Callable[[], list[Event]],
        account: Callable[[float], None],
    ) -> list[Event]:
        """What may fail, and then ends the texts that it was for."""
        started = time.perf_counter()
        try:
            events = call()
        except (EagleError, RuntimeError, MemoryError) as error:
            return [self._fail(text, error) for text in texts if text.sequence is not None]
        if self.prompts and self.running:
            account(time.perf_counter() - started)
        else:
            self._share.reset()
        return events

    def _told(self, text: RunningRequest, told: Tokens | Scored) -> list[Event]:
        events: list[Event] = [told]
        if text.ended is not None:
            events.append(text.finished(text.ended))
            self._leave(text)
        return events

    def _cancel(self, text: RunningRequest) -> Event:
        event = text.finished("cancelled")
        self._leave(text)
        return event

    def _fail(self, text: RunningRequest, error: Exception) -> Event:
        self._leave(text, kept=False)
        return Failed(text.number, reason(error), error)

    def _join(self, text: RunningRequest, bonus: Tensor) -> None:
        """Its sequence comes to the place behind those that run."""
        assert text.sequence is not None
        place = len(self.running)
        self.sequences.bring(text.sequence, place)
        self.running.append(text)
        running = self.schedule.running
        running.place(bonus, text.position, place)
        running.limit_drafts(text.request.most, place)
        self.schedule.join(self.running)

    def _leave(self, text: RunningRequest, *, kept: bool = True) -> None:
        """The last of those that run takes its place, and its sequence is free."""
        if text in self.running:
            place, last = self.running.index(text), self.running[-1]
            assert last.sequence is not None
            self.schedule.running.stop(place)
            self.sequences.bring(last.sequence, place)
            self.running[place] = last
            self.running.pop()
        elif text in self.prompts:
            self.prompts.remove(text)
        else:
            self.waiting.remove(text)
        if text.sequence is not None:
            self.schedule.running.sampler.end(text.sequence)
            self.sequences.give_back(text.sequence, kept=kept)
        text.sequence = text.scoring = text.run = None
