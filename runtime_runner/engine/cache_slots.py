"""The caches of an artifact: who has which, at which place, and what is left in them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.decode.round import BatchState, Drafter, StatelessDrafter
from eagle_aot.runtime_runner.decode.target import Target
from eagle_aot.runtime_runner.engine.cached_prefix import CachedPrefix
from eagle_aot.runtime_runner.engine.request import Request
from eagle_aot.runtime_runner.images.picture import Span

COPY_LEAST = 32
"""Rows from which on a copy of them, which reads and writes every layer's cache, is sooner there
than they are run."""


@dataclass(frozen=True, slots=True)
class PrefixQuery:
    """A prompt, by the keys that tell it and its pictures from others', and where these are. With
    `shown`, rows of it that a cache holds are of use only as far as what drafts was shown them."""

    prompt: Sequence[int]
    pictures: Sequence[Span] = ()
    shown: bool = False

    @classmethod
    def by(cls, request: Request, drafter: Drafter | None) -> "PrefixQuery":
        """What a request can go on from, if this is what drafts for those that are drafted."""
        placed, needs_none = (
            request.placed,
            request.is_plain or isinstance(drafter, StatelessDrafter),
        )
        return cls(placed.keys, placed.spans, shown=drafter is not None and not needs_none)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheContents:
    """What a text of `length` tokens leaves in its cache: rows of all of `tokens` but the last, the
    first `kept` of which were there before. `prompt_tokens` of them were read, with `pictures`
    among them. `scratch` slots behind a tail's may be written. What drafts was shown the first
    `shown` rows, and of those that were there as many as before."""

    tokens: Sequence[int]
    prompt_tokens: int
    kept: int
    length: int
    scratch: int
    pictures: Sequence[Span] = ()
    shown: int = 0


class CacheSlots:
    """`order` is the sequence at each place of `running`; `free` are those that nobody has, the one
    that was used longest ago first."""

    def __init__(self, running: BatchState, target: Target, copy_least: int = COPY_LEAST) -> None:
        """`copy_least` rows of a prompt are copied from another sequence, and fewer are run."""
        self.copy_least = copy_least
        self._running, self._target = running, target
        self.order: list[int] = running.sequences.tolist()
        self.free = list(self.order)
        self._kept: dict[int, CachedPrefix] = {}
        self._users: dict[int, Callable[[], CacheContents]] = {}

    def take(
        self, wanted: PrefixQuery, reuse: bool, left: Callable[[], CacheContents]
    ) -> tuple[int, int]:
        """A free one for a prompt, and how many of its rows are there, which is 0 unless rows may
        be reused. `left` tells what its text would leave there, whenever that is asked."""
        shared = {s: self.shared(wanted, self.held(s)) for s in self.free if reuse}
        sequence = self._least_worth(shared)
        self.free.remove(sequence)
        self._users[sequence] = left
        return sequence, shared.get(sequence, 0)

    def _least_worth(self, shared: dict[int, int]) -> int:
        """The free one to take for a text of which they have so many rows: the one with most,
        unless the one used longest ago holds less than the text would overwrite there."""
        most = max(self.free, key=lambda s: shared.get(s, 0))
        oldest = next((s for s in self.free if not self.held(s).rows), self.free[0])
        overwritten = self.held(most).rows - shared.get(most, 0)
        if self._target.copies and self.held(oldest).rows < overwritten:
            return oldest
        return most

    def cache(self, sequence: int) -> Tensor:
        """As methods take it, int64 [1]."""
        place = self.order.index(sequence)
        return self._running.sequences[place : place + 1]

    def bring(self, sequence: int, place: int) -> None:
        """To a place; who was there comes to its own."""
        own = self.order.index(sequence)
        if own != place:
            self._running.swap(own, place)
            self.order[own], self.order[place] = self.order[place], self.order[own]

    def give_back(self, sequence: int, *, kept: bool) -> None:
        """It is free, and holds what its text left, or what is not known."""
        held = self.held(sequence) if kept else CachedPrefix()
        del self._users[sequence]
        self._kept[sequence] = held
        self.free.append(sequence)

    def forget(self, *sequences: int) -> None:
        """What sequences hold that are free, all of them where none is named."""
        for sequence in sequences or self.order:
            self._kept.pop(sequence, None)

    def held(self, sequence: int) -> CachedPrefix:
        """What it holds by now, whether it is free or not."""
        user = self._users.get(sequence)
        return (
            self.with_text(sequence, user()) if user else self._kept.get(sequence, CachedPrefix())
        )

    def with_text(self, sequence: int, left: CacheContents) -> CachedPrefix:
        """What it would hold if its text had left that."""
        before = self._kept.get(sequence, CachedPrefix())
        plan = self._plan(left.prompt_tokens, left.pictures)
        written = left.length + self._target.tail + left.scratch  # with drafts, at most
        return before.followed_by(left.tokens, plan, left.kept, written, left.shown)

    def shared(self, wanted: PrefixQuery, text: CachedPrefix) -> int:
        """How many rows of a prompt are those of a text, and of use."""
        prompt, target = wanted.prompt, self._target
        plan = partial(self._plan, len(prompt), wanted.pictures)
        return text.shared(prompt, plan, target.rewind, target.window, shown=wanted.shown)

    def _plan(self, length: int, pictures: Sequence[Span], kept: int = 0) -> list[Chunk]:
        target = self._target
        if not pictures:
            return target.plan_prompt(length, kept)
        return target.plan_around(length, pictures, kept)

    def richest(self, sequence: int, wanted: PrefixQuery) -> tuple[int, int]:
        """Which of the others has most rows of a prompt, and how many; itself and 0 where there are
        none."""
        others = (s for s in self.order if s != sequence)
        shared = {s: self.shared(wanted, self.held(s)) for s in others}
        most = max(shared, key=lambda s: shared[s], default=sequence)
        return most, shared.get(most, 0)

    def copy(self, source: int, sequence: int, rows: int) -> None:
        """The first rows of one to another, whose text goes on behind them."""
        self._target.copy_rows(self.cache(source), self.cache(sequence), rows)
        self._kept[sequence] = self.held(source)
        if source in self.free:
            self.free.remove(source)
            self.free.append(source)
