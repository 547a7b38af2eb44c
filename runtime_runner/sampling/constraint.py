"""Structured outputs: texts that match a JSON schema, a regular expression, a grammar or a choice.

llguidance decides which tokens may follow a text. Nothing else in the project calls it, so that
another library could take its place.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from eagle_aot.common.errors import EagleError, SettingError, UnsupportedError

if TYPE_CHECKING:
    from llguidance import LLMatcher

LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON is written as by Python's json.dumps: where any blanks are allowed, some models write
nothing else. A schema may say otherwise under the key x-guidance."""
LONGEST_REASON = 300
"""Characters of llguidance's own words in an error."""


class ConstraintError(EagleError):
    """A text cannot be continued, because its constraint became too complex to follow."""


@dataclass(slots=True)
class DraftRows:
    """The rows of one sequence in a step, on the host: row 0 follows the answer, the others are
    drafts. `tokens` are theirs, and `children` the later rows whose drafts follow each."""

    tokens: list[int]
    children: list[list[int]]


class Constraint(Protocol):
    """What one answer must match, and the tokens that it has so far."""

    def advance(self, token: int) -> None:
        """Append a token to the answer. Raises ConstraintError if no answer can continue so."""

    def look_ahead(self, bitmask: Tensor | None) -> list[int]:
        """Write which tokens may follow the answer to `bitmask` uint8 [W], as `fill` does, unless
        it is None. Returns the tokens that must, as far as they are known."""

    def repair(self, rows: DraftRows) -> bool:
        """Put tokens that must come next in the place of drafts that cannot. Returns whether any
        was changed; siblings stay different."""

    def fill(self, rows: DraftRows, bitmask: Tensor) -> None:
        """Write which tokens may follow each row to `bitmask` uint8 [T, W], whose bit i % 8 of byte
        i // 8 stands for token i.

        Rows after a draft that cannot come, and after the end, are left as they are: what follows
        them is never used.
        """


class GrammarCompiler:
    """Makes constraints of answers in the tokens of one artifact."""

    def __init__(self, tokenizer: Path, vocab: int, stop_ids: Sequence[int]) -> None:
        """Read a `tokenizer.json` of at most `vocab` tokens; `stop_ids` end an answer.

        Raises SettingError without a stop id, UnsupportedError for a tokenizer that llguidance does
        not read.
        """
        if not stop_ids:
            raise SettingError("an answer of a given form: the artifact has no stop id to end it")
        from llguidance import LLTokenizer  # needed by few

        self._vocab = vocab
        try:
            self._tokenizer = LLTokenizer(str(tokenizer), n_vocab=vocab, eos_token=[*stop_ids])
        except (ValueError, RuntimeError) as error:
            raise UnsupportedError(f"{tokenizer}: for answers of a given form: {error}") from error

    def compile(self, name: str, value: Any) -> Constraint:
        """Return the constraint of a new answer, one of `STRUCTURES`. Raises SettingError if it
        cannot be read."""
        from llguidance import LLMatcher, LLParserLimits

        try:
            grammar = _grammar(name, value)
        except ValueError as error:
            raise SettingError(f"{name}: {_reason(str(error))}") from error
        limits = LLParserLimits(verbose_errors=False)

        def start() -> LLMatcher:
            return LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)

        matcher = start()
        matcher.compute_bitmask()  # some errors show up only here; it is kept for the first token
        if matcher.is_error():
            raise SettingError(f"{name}: {_reason(matcher.get_error())}")
        return LLGuidanceConstraint(matcher, start)


class LLGuidanceConstraint:
    """A `Constraint` that llguidance's matcher follows, which stands after the answer.

    Drafts are followed by copies of it, which take 2 us. Copies share what has become too complex,
    so the matcher is made anew after a draft that does: no draft ends an answer.
    """

    def __init__(self, matcher: "LLMatcher", start: Callable[[], "LLMatcher"]) -> None:
        """`start` makes a matcher of an empty answer, as `matcher` is."""
        self._matcher, self._start = matcher, start
        self._answer: list[int] = []
        self._ahead: LLMatcher | None = None
        """A copy that knows the mask after the answer."""
        self._failed: dict[tuple[int, ...], str] = {}
        """Why no token can be chosen after the answer of the last `fill` and these tokens."""
        self._since_fill: tuple[int, ...] = ()

    def advance(self, token: int) -> None:
        reason = self._failed.get(self._since_fill)
        if reason is None and not self._matcher.consume_token(token):
            reason = _reason(self._matcher.get_error())
        if reason is not None:
            raise ConstraintError(f"the answer's form: {reason}")
        self._answer.append(token)
        self._ahead = None
        self._since_fill += (token,)

    def look_ahead(self, bitmask: Tensor | None) -> list[int]:
        rows, forced = DraftRows([0], [[]]), list[int]()
        for _, _, matcher in self._walk(rows):
            if bitmask is not None:
                matcher.unsafe_compute_mask_ptr(bitmask.data_ptr(), len(bitmask))
            forced = matcher.compute_ff_tokens()
            self._ahead = matcher
        return forced

    def repair(self, rows: DraftRows) -> bool:
        before = [*rows.tokens]
        for row, _, matcher in self._walk(rows):
            children = rows.children[row]
            forced = matcher.compute_ff_tokens() if children else []
            if forced and forced[0] not in (rows.tokens[child] for child in children):
                rows.tokens[children[0]] = forced[0]
        return rows.tokens != before

    def fill(self, rows: DraftRows, bitmask: Tensor) -> None:
        self._failed, self._since_fill = {}, ()
        width = bitmask.shape[1]
        for row, path, matcher in self._walk(rows):
            matcher.unsafe_compute_mask_ptr(bitmask.data_ptr() + row * width, width)
            if matcher.is_error():
                self._failed[path] = _reason(matcher.get_error())

    def _walk(self, rows: DraftRows) -> Iterator[tuple[int, tuple[int, ...], "LLMatcher"]]:
        """Yield rows that may come, with the drafts of their paths and a matcher after them."""
        first = (self._ahead or self._matcher).deep_copy()
        left: list[tuple[int, tuple[int, ...], LLMatcher]] = [(0, (), first)]
        while left:
            row, path, matcher = left.pop()
            yield row, path, matcher
            is_broken = matcher.is_error()
            for child in rows.children[row]:
                token, is_last = rows.tokens[child], child == rows.children[row][-1]
                branch = matcher if is_last else matcher.deep_copy()
                if branch.try_consume_tokens([token]) == 1:
                    left.append((child, (*path, token), branch))
                is_broken |= branch.is_error()
            if is_broken:
                self._matcher, self._ahead = self._after(self._start(), self._answer), None
                left = [(r, p, self._after(self._matcher.deep_copy(), p)) for r, p, _ in left]

    @staticmethod
    def _after(matcher: "LLMatcher", tokens: Iterable[int]) -> "LLMatcher":
        """Let a matcher consume tokens that it can, and return it."""
        for token in tokens:
            matcher.consume_token(token)
        return matcher


def _grammar(name: str, value: Any) -> str:
    """Return a constraint in llguidance's form. Raises ValueError."""
    from llguidance import LLMatcher

    if name == "json_schema":
        return LLMatcher.grammar_from_json_schema(value, defaults=LAYOUT)
    if name == "regex":
        return LLMatcher.grammar_from_regex(value)
    if name == "choices":
        value = f"start: CHOICE\nCHOICE: {one_of(value)}"
    if value.lstrip().startswith("{"):  # several grammars in llguidance's JSON: Lark has no brace
        return str(value)
    return LLMatcher.grammar_from_lark(value)


def one_of(texts: Iterable[str]) -> str:
    """Return the body of a terminal in Lark that is one of some texts. As alternatives of a rule
    they would take a time to compile that grows with the square of their number."""
    return " | ".join(map(json.dumps, texts))


def _reason(error: str) -> str:
    """Return the first line of llguidance's error."""
    return next(iter(error.splitlines()), "not readable")[:LONGEST_REASON]
