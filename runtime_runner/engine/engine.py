"""The engine: sequences that come and go over one artifact.

A request waits for a free sequence, runs its prompt chunk by chunk, joins the rounds of the others,
and leaves. None of its tokens depends on who else is there: a row does not feel its neighbours, and
a prompt is cut by its length alone.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable

from eagle_aot.common.errors import EagleError, SettingError
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.engine.prompt_run import PromptRun
from eagle_aot.runtime_runner.engine.request import (
    Event,
    Failed,
    Finished,
    Request,
    RequestId,
    Tokens,
)
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.text import Text
from eagle_aot.runtime_runner.engine.turns import PromptShare, PromptTurns

PROMPT_SHARE = 0.5


class Engine:
    """Texts side by side. One thread calls `step`; `add` and `cancel` may come from any.

    The texts that run are at the first places of `rounds.running`, in the order of `running`; the
    sequences at the other places are free or belong to prompts.
    """

    def __init__(self, rounds: Rounds, prompt_share: float = PROMPT_SHARE) -> None:
        """`prompt_share` is how much of the time prompts may take from texts that run. Raises
        SettingError unless it is between 0 and 1."""
        if not 0 < prompt_share < 1:
            raise SettingError(f"prompt share {prompt_share}: must be between 0 and 1")
        self.rounds = rounds
        self.waiting: deque[Text] = deque()
        self.prompts: list[Text] = []
        self.running: list[Text] = []
        self.order = rounds.running.sequences.tolist()
        """The sequence at each place."""
        self._share, self._turns = PromptShare(prompt_share), PromptTurns()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._added: list[Text] = []
        self._cancelled: set[RequestId] = set()

    def add(self, request: Request) -> RequestId:
        """Queue a request, which is known to fit."""
        with self._lock:
            text = Text(next(self._numbers), request)
            self._added.append(text)
        return text.number

    def cancel(self, request: RequestId) -> None:
        """End a request before the next step; nothing happens where it has ended already."""
        with self._lock:
            self._cancelled.add(request)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        with self._lock:
            return bool(self._added or self.waiting or self.prompts or self.running)

    def step(self) -> list[Event]:
        """One chunk of a prompt, or one round of all texts that run, and what came of it."""
        events = self._take_orders()
        self._admit()
        if self.prompts and (not self.running or self._share.due):
            return events + self._run_chunk()
        if self.running:
            return events + self._run_round()
        return events

    def _take_orders(self) -> list[Event]:
        with self._lock:
            self.waiting += self._added
            cancelled, self._cancelled = self._cancelled, set()
            self._added = []
        texts = [*self.waiting, *self.prompts, *self.running]
        return [self._cancel(text) for text in texts if text.number in cancelled]

    def _admit(self) -> None:
        """Give free sequences to those who wait, the first first."""
        taken = {text.sequence for text in (*self.prompts, *self.running)}
        free = [sequence for sequence in self.order if sequence not in taken]
        rounds = self.rounds
        for sequence in free[: len(self.waiting)]:
            text = self.waiting.popleft()
            place = self.order.index(sequence)
            drafter = rounds.drafter if text.request.chain_len else None
            where = rounds.running.sequences[place : place + 1]
            text.start(sequence, PromptRun(rounds.target, drafter, text.request.prompt, where))
            self.prompts.append(text)

    def _run_chunk(self) -> list[Event]:
        text = self._turns.next(self.prompts)
        return self._attempt([text], lambda: self._chunk(text), self._share.add_chunk)

    def _chunk(self, text: Text) -> list[Event]:
        assert text.run is not None
        bonus = text.run.run_chunk()
        first = int(bonus)  # waits for the device: the chunk's time is its own
        text.stats.prefill_chunks += 1
        if text.run.left:
            return []
        self.prompts.remove(text)
        run = text.begin(first)
        self._join(text)
        self.rounds.running.place(bonus, text.position, len(self.running) - 1)
        return self._told(text, run)

    def _run_round(self) -> list[Event]:
        return self._attempt(list(self.running), self._round, self._share.add_round)

    def _round(self) -> list[Event]:
        texts = list(self.running)
        chain_len = max(text.request.chain_len for text in texts)
        round_ = self.rounds.of(len(texts), chain_len)
        found = round_.play().tolist()  # the round's one copy to the host
        events: list[Event] = []
        for text, (accepted, *tokens) in zip(texts, found, strict=False):
            events += self._told(text, text.add(round_.chain_len, accepted, tokens))
        return events

    def _attempt(
        self,
        texts: list[Text],
        call: Callable[[], list[Event]],
        account: Callable[[float], None],
    ) -> list[Event]:
        """What may fail, and then ends the texts that it was for."""
        started = time.perf_counter()
        try:
            events = call()
        except (EagleError, RuntimeError) as error:
            return [self._fail(text, error) for text in texts]
        if self.prompts and self.running:
            account(time.perf_counter() - started)
        else:
            self._share.reset()
        return events

    def _told(self, text: Text, run: list[int]) -> list[Event]:
        events: list[Event] = [Tokens(text.number, run)]
        if text.ended is not None:
            self._leave(text)
            events.append(Finished(text.number, text.ended, text.stats))
        return events

    def _cancel(self, text: Text) -> Event:
        self._leave(text)
        return Finished(text.number, "cancelled", text.stats)

    def _fail(self, text: Text, error: Exception) -> Event:
        self._leave(text)
        return Failed(text.number, one_line(str(error)))

    def _join(self, text: Text) -> None:
        """Its sequence comes to the place behind those that run."""
        assert text.sequence is not None
        self._swap(self.order.index(text.sequence), len(self.running))
        self.running.append(text)
        wanted = min(text.request.chain_len, self.rounds.longest_chain(1))
        self.rounds.running.wanted[len(self.running) - 1] = wanted

    def _leave(self, text: Text) -> None:
        """The last of those that run takes its place, and its sequence is free."""
        if text in self.running:
            place, last = self.running.index(text), len(self.running) - 1
            self.rounds.running.stop(place)
            self._swap(place, last)
            self.running[place] = self.running[last]
            self.running.pop()
        elif text in self.prompts:
            self.prompts.remove(text)
        elif text in self.waiting:
            self.waiting.remove(text)
        text.sequence = text.run = None

    def _swap(self, place: int, other: int) -> None:
        if place != other:
            self.rounds.running.swap(place, other)
            self.order[place], self.order[other] = self.order[other], self.order[place]
