"""The sequences of an artifact: their users, and what they still hold (the prefix cache).

A request reuses exactly those rows of a sequence that running its prompt would compute again bit
for bit, so no token depends on reuse. `prefill` and `target_verify` each give a row the same bits
however its text was cut, prompt or answer. The two may differ from each other, so a row is reused
only where the new prompt would run it with the same method.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, count
from operator import ne

from torch import Tensor

from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.decode.round import Drafter, StatelessDrafter
from eagle_aot.runtime_runner.decode.target import Target
from eagle_aot.runtime_runner.engine.kept_states import KeptStates
from eagle_aot.runtime_runner.engine.request import Request
from eagle_aot.runtime_runner.images.prompt_image import ImageSpan
from eagle_aot.runtime_runner.program.cache_pages import CachePages

COPY_LEAST = 32
"""From this many rows on, copying them between sequences is faster than running them."""


@dataclass(frozen=True, slots=True)
class PrefixQuery:
    """A prompt that looks for cached rows.

    `prompt` holds a key per position: the token id, or what identifies an image. `images` are their
    spans. With `for_drafter`, only rows that the drafter has seen too are of use. Rows of requests
    with another `salt` are of none, so that how many were cached reveals no other user's prompt.
    """

    prompt: Sequence[int]
    images: Sequence[ImageSpan] = ()
    for_drafter: bool = False
    salt: str = ""

    @classmethod
    def of(cls, request: Request, drafter: Drafter | None) -> "PrefixQuery":
        """Return the query of a request that is drafted by `drafter`."""
        placed, stateless = request.placed, isinstance(drafter, StatelessDrafter)
        for_drafter = drafter is not None and not request.is_plain and not stateless
        return cls(placed.keys, placed.spans, for_drafter, request.cache_salt)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheContents:
    """What a request leaves in its sequence: rows of all `tokens` except the last.

    The first `reused` rows were there before. The first `prompt_tokens` tokens are the prompt's,
    with `images` among them. The text has `length` tokens, and `scratch_rows` slots after the tail
    may have been written too. The drafter has seen the first `drafter_rows` rows, and as many of
    the reused ones as before.
    """

    tokens: Sequence[int]
    prompt_tokens: int
    reused: int
    length: int
    scratch_rows: int
    images: Sequence[ImageSpan] = ()
    drafter_rows: int = 0
    salt: str = ""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The rows that a sequence holds, at their positions: those of all `tokens` but the last.

    `prefill` ran the first `prefilled` of them, `target_verify` the others. Nothing was written at
    positions from `written` on since the first row. The drafter has seen the first `drafter_rows`.
    `salt` is that of the request whose rows they are. A text may continue after as many of them as
    are in `states`, or after any if it is None.
    """

    tokens: Sequence[int] = ()
    prefilled: int = 0
    written: int = 0
    drafter_rows: int = 0
    salt: str = ""
    states: Sequence[int] | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return max(len(self.tokens) - 1, 0)

    def match(
        self,
        prompt: Sequence[int],
        plan: Callable[[int], Sequence[Chunk]],
        rewind: int,
        window: int = 0,
        *,
        for_drafter: bool = False,
    ) -> int:
        """Return how many rows of `prompt` can be reused.

        `plan` returns the prompt's chunks for a number of reused rows. The last row is never
        reused, since its logits are needed, nor the row before the first different token, which a
        drafter pairs with that token. A text may continue at most `rewind` positions before
        `written`, or keys of the sliding `window` would be missing; below a window's length none
        are. A state has taken in its rows and cannot run them again.
        """
        rows = max(common_length(self.tokens, prompt) - 1, 0)
        if for_drafter:
            rows = min(rows, self.drafter_rows)
        by_prefill = prefilled(plan(0))
        if by_prefill != self.prefilled:
            rows = min(rows, by_prefill, self.prefilled)
        if self.states is not None:
            kept = (s for s in self.states if s <= rows and plan(s)[0].start == s)
            rows = max(kept, default=0)
        return rows if self.written - max(plan(rows)[0].start, window) <= rewind else 0

    def followed_by(
        self,
        tokens: Sequence[int],
        plan: Sequence[Chunk],
        reused: int,
        written: int,
        drafter_rows: int = 0,
    ) -> "CachedPrefix":
        """Return the prefix after a request ran `tokens`, the first `reused` rows of them reused.

        It wrote up to the position `written`, and showed the drafter `drafter_rows` rows unless
        more were shown before. `plan` are the prompt's chunks without reuse.
        """
        drafter_rows = max(drafter_rows, min(reused, self.drafter_rows))
        written = max(written, self.written if reused else 0)
        return CachedPrefix(tokens, prefilled(plan), written, drafter_rows)


def prefilled(plan: Sequence[Chunk]) -> int:
    """Return how many rows `prefill` runs of a plan without reuse."""
    return sum(len(chunk) for chunk in plan if not chunk.few_rows)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two texts."""
    differ = map(ne, first, second)  # without a Python loop: texts are long, and there are many
    return next(compress(count(), differ), min(len(first), len(second)))


class SequencePool:
    """The sequences of a batch state.

    `order` is the sequence at each batch index; `free` are the unused ones, least recently used
    first. Their rows are forgotten, in that order, where others need the memory.
    """

    def __init__(
        self,
        batch: BatchState,
        target: Target,
        pages: CachePages | None = None,
        copy_least: int = COPY_LEAST,
    ) -> None:
        """Rows of a common prefix are copied from another sequence from `copy_least` rows on.
        `pages` gives memory to sequences, which all have it if that is None."""
        self.copy_least, self._pages = copy_least, pages
        self._batch, self._target = batch, target
        self.order: list[int] = batch.sequences.tolist()
        self.free = list(self.order)
        if pages is not None:
            for sequence in self.order:
                pages.shrink(sequence)
        self.kept_states = KeptStates(target)
        self._cached: dict[int, CachedPrefix] = {}
        self._users: dict[int, Callable[[], CacheContents]] = {}

    def allocate(
        self,
        query: PrefixQuery,
        reuse: bool,
        contents: Callable[[], CacheContents],
        length: int = 0,
    ) -> tuple[int, int] | None:
        """Return a free sequence for a prompt, and how many rows it has of it: 0 without `reuse`.

        `contents` reports what the sequence's new user has in it, at any later time. Returns None
        where there is no memory for a text of `length` tokens.
        """
        matches = {s: self.reusable(query, self.cached(s)) for s in self.free if reuse}
        sequence = self._least_valuable(matches)
        pages = self._pages
        if pages is not None and not (pages.holds(sequence) or pages.grow(sequence, length)):
            # To give one sequence's memory to another takes longer than to write over its rows.
            sequence = next(filter(pages.holds, self.free), sequence)
        place = self.free.index(sequence)
        self.free.remove(sequence)
        if pages is not None:
            pages.shrink(sequence, length)
        if not self.hold(sequence, length):
            self.free.insert(place, sequence)
            return None
        self._users[sequence] = contents
        reused = matches.get(sequence, 0)
        self.kept_states.restore(sequence, reused, sequence)
        return sequence, reused

    def hold(self, sequence: int, length: int) -> bool:
        """Have memory for a text of `length` tokens in a sequence in use. Returns False where that
        of all free sequences is not enough."""
        while self._pages is not None and not self._pages.grow(sequence, length):
            held = next(filter(self._pages.holds, self.free), None)
            if held is None:
                return False
            self.forget(held)
            self._pages.shrink(held)
        return True

    def lend(self, count: int) -> None:
        """Forget all rows: the caller runs rows in the first `count` sequences. They have memory
        for texts of one length, as long as it can be."""
        self.forget()
        if self._pages is not None:
            for sequence in self.order[count:]:
                self._pages.shrink(sequence)
            self._pages.grow_evenly(self.order[:count])

    def _least_valuable(self, matches: dict[int, int]) -> int:
        """Return the free sequence with the longest match, unless the least recently used one holds
        fewer rows than would be overwritten there. Without rows, it is one that has pages or shares
        them."""
        best = max(self.free, key=lambda s: matches.get(s, 0))
        empty = [s for s in self.free if not self.cached(s).rows]
        oldest = max(empty or self.free[:1], key=self._has_pages)
        if best in empty:
            return oldest
        overwritten = self.cached(best).rows - matches.get(best, 0)
        if self._target.can_copy_rows and self.cached(oldest).rows < overwritten:
            return oldest
        return best

    def _has_pages(self, sequence: int) -> tuple[bool, ...]:
        pages = self._pages
        return () if pages is None else (pages.holds(sequence), pages.borders(sequence))

    def tensor(self, sequence: int) -> Tensor:
        """Return a sequence's number as methods take it, int64 [1]."""
        index = self.order.index(sequence)
        return self._batch.sequences[index : index + 1]

    def move_to(self, sequence: int, index: int) -> None:
        """Swap a sequence to a batch index."""
        before = self.order.index(sequence)
        if before != index:
            self._batch.swap(before, index)
            self.order[before], self.order[index] = self.order[index], self.order[before]

    def release(self, sequence: int, *, reusable: bool) -> None:
        """Free a sequence; its rows stay for later prompts if they are `reusable`."""
        cached = self.cached(sequence) if reusable else CachedPrefix()
        del self._users[sequence]
        self._cached[sequence] = cached
        self.free.append(sequence)

    def forget(self, *sequences: int) -> None:
        """Forget the rows of free sequences, of all of them where none is named."""
        for sequence in sequences or self.order:
            self._cached.pop(sequence, None)

    def cached(self, sequence: int) -> CachedPrefix:
        """Return what a sequence holds now, whether it is free or not."""
        if user := self._users.get(sequence):
            return self.after(sequence, user())
        return self._cached.get(sequence, CachedPrefix())

    def after(
        self, sequence: int, contents: CacheContents, state: int | None = None
    ) -> CachedPrefix:
        """Return what a sequence would hold with these contents, and a kept `state`."""
        plan = self._target.plan_prompt(contents.prompt_tokens, images=contents.images)
        # At most, with drafts.
        written = contents.length + self._target.tail_length + contents.scratch_rows
        before = self._cached.get(sequence, CachedPrefix())
        prefix = before.followed_by(
            contents.tokens, plan, contents.reused, written, contents.drafter_rows
        )
        states = self.kept_states.positions(sequence)
        if states is not None and state is not None:
            states = (*states, state)
        return replace(prefix, salt=contents.salt, states=states)

    def reusable(self, query: PrefixQuery, cached: CachedPrefix) -> int:
        """Return how many rows of a cached prefix a query's prompt can reuse."""
        if query.salt != cached.salt:
            return 0
        plan = partial(self._target.plan_prompt, len(query.prompt), images=query.images)
        return cached.match(
            query.prompt,
            plan,
            self._target.rewind,
            self._target.window,
            for_drafter=query.for_drafter,
        )

    def longest_match(self, sequence: int, query: PrefixQuery) -> tuple[int, int]:
        """Return the other sequence that holds most rows of a query's prompt, and how many.

        Returns the sequence itself and 0 where no other one holds any.
        """
        matches = {s: self.reusable(query, self.cached(s)) for s in self.order if s != sequence}
        best = max(matches, key=lambda s: matches[s], default=sequence)
        return best, matches.get(best, 0)

    def copy(self, source: int, sequence: int, rows: int) -> None:
        """Copy the first rows of a sequence to another one."""
        self._target.copy_rows(self.tensor(source), self.tensor(sequence), rows)
        self.kept_states.restore(source, rows, sequence)
        self._cached[sequence] = self.cached(source)
        if source in self.free:
            self.free.remove(source)
            self.free.append(source)
