"""Structured outputs: texts that match a JSON schema, a regular expression, a grammar or a choice.

llguidance decides which tokens may follow a text. Nothing else in the project calls it, so that
another library could take its place.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from torch import Tensor

from eagle_aot.common.errors import EagleError, SettingError, UnsupportedError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON is written as by Python's json.dumps: where any blanks are allowed, some models write
nothing else. A schema may say otherwise under the key x-guidance."""
MOST_FORCED = 2048
"""How many tokens may have to come next. llguidance writes them all for each mask: a megabyte of
fixed text, or an object in itself without end, would hold up all other requests for seconds."""
TOO_FIXED = f"more than {MOST_FORCED} tokens of fixed text follow"
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

    def restart(self) -> None:
        """Begin the answer again."""

    def look_ahead(self, bitmask: Tensor | None) -> list[int]:
        """Write which tokens may follow the answer to `bitmask` uint8 [W], as `fill` does, unless
        it is None. Returns the tokens that must, as far as they are known."""

    def repair(self, rows: DraftRows) -> bool:
        """Put tokens that must come next in the place of drafts that cannot, as far as they can be
        followed. Returns whether any was changed; siblings stay different."""

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

        self._forms = WeakValueDictionary[int, CompiledForm]()
        """By the identities of their values."""
        try:
            self._tokenizer = LLTokenizer(str(tokenizer), n_vocab=vocab, eos_token=[*stop_ids])
        except (ValueError, RuntimeError) as error:
            raise UnsupportedError(f"{tokenizer}: for answers of a given form: {error}") from error

    def compile(self, name: str, value: Any) -> Constraint:
        """Return the constraint of a new answer, one of `STRUCTURES`. Answers to one request, whose
        value is one object, share what is compiled. Raises SettingError if it cannot be read."""
        try:
            grammar = _grammar(name, value)
        except ValueError as error:
            raise SettingError(f"{name}: {_reason(str(error))}") from error
        form = self._forms.get(id(value))
        if form is None or form.grammar != grammar:  # a schema may be a dict that was changed
            form = CompiledForm(value, grammar, self._tokenizer)
            if form.error is not None:
                raise SettingError(f"{name}: {_reason(form.error)}")
            self._forms[id(value)] = form
        return LLGuidanceConstraint(form)


class CompiledForm:
    """What answers of one form share while any of them is there.

    Copies of a matcher take 2 us. llguidance lets them share the states of its lexer, and with them
    the error when one of them has become too complex: such a copy is to be replaced.
    """

    def __init__(
        self,
        value: Any,
        grammar: str,
        tokenizer: "LLTokenizer",
        limits: "LLParserLimits | None" = None,
    ) -> None:
        """Compile a grammar, with llguidance's limits of complexity for None; `error` says why it
        cannot be. `value` is kept: its identity is the form's name."""
        self.value, self.grammar, self._limits = value, grammar, limits
        self._tokenizer = tokenizer
        self._matcher, self.error = self.start(), None
        if len(self._matcher.compute_ff_tokens()) > MOST_FORCED:
            self.error = TOO_FIXED
            return
        self._matcher.compute_bitmask()  # kept for first tokens; some errors show up only here
        if self._matcher.is_error():
            self.error = self._matcher.get_error()

    def matcher(self) -> "LLMatcher":
        """Return a matcher of an empty answer."""
        return self._matcher.deep_copy()

    def start(self) -> "LLMatcher":
        """Compile a matcher of an empty answer, which shares nothing."""
        from llguidance import LLMatcher, LLParserLimits

        limits = self._limits or LLParserLimits(verbose_errors=False)
        return LLMatcher(self._tokenizer, self.grammar, log_level=0, limits=limits)


class LLGuidanceConstraint:
    """A `Constraint` that llguidance's matcher follows, which stands after the answer.

    Drafts are followed by copies of it. Where one fails, because the answer, a draft or another
    answer of the form has become too complex, a matcher that has followed this row alone decides.
    So neither drafts nor other answers end an answer.
    """

    def __init__(self, form: CompiledForm) -> None:
        self._form = form
        self.restart()

    def restart(self) -> None:
        self._matcher = self._form.matcher()
        self._answer: list[int] = []
        self._ahead: LLMatcher | None = None
        """A copy that knows the mask after the answer."""
        self._failed: dict[tuple[int, ...], str] = {}
        """Why no token can be chosen after the answer of the last `fill` and these tokens."""
        self._since_fill: tuple[int, ...] = ()

    def advance(self, token: int) -> None:
        reason = self._failed.get(self._since_fill)
        if reason is None and not self._matcher.consume_token(token):
            self._renew()
            if not self._matcher.consume_token(token):
                reason = _reason(self._matcher.get_error())
        if reason is not None:
            raise ConstraintError(f"the answer's form: {reason}")
        self._answer.append(token)
        self._ahead = None
        self._since_fill += (token,)

    def look_ahead(self, bitmask: Tensor | None) -> list[int]:
        matcher = self._matcher.deep_copy()
        forced = matcher.compute_ff_tokens()
        if len(forced) > MOST_FORCED:
            return []
        if bitmask is not None:
            matcher.unsafe_compute_mask_ptr(bitmask.data_ptr(), len(bitmask))
        if matcher.is_error():  # `fill` renews it
            return []
        self._ahead = matcher
        return forced

    def repair(self, rows: DraftRows) -> bool:
        before, left = [*rows.tokens], [(0, self._after(()))]
        while left:
            row, matcher = left.pop()
            end = _follow_run(matcher, rows, row)
            if end is not None:
                left += _branches(matcher, rows, end)
        return rows.tokens != before

    def fill(self, rows: DraftRows, bitmask: Tensor) -> None:
        self._since_fill = ()
        self._failed = self._write_masks(rows, bitmask)

    def _write_masks(self, rows: DraftRows, bitmask: Tensor) -> dict[tuple[int, ...], str]:
        """Write the mask of each row that may come. Returns why no token can follow some rows, by
        the drafts of their paths."""
        width = bitmask.shape[1]
        failed: dict[tuple[int, ...], str] = {}
        renewed_for: tuple[int, ...] | None = None
        left: list[tuple[int, tuple[int, ...], LLMatcher | None]] = [(0, (), None)]
        while left:
            row, path, found = left.pop()
            matcher = found or self._after(path)
            if len(matcher.compute_ff_tokens()) > MOST_FORCED:
                failed[path] = TOO_FIXED
                continue
            matcher.unsafe_compute_mask_ptr(bitmask.data_ptr() + row * width, width)
            if not matcher.is_error():
                left += self._children(rows, row, path, matcher)
            elif renewed_for != path:  # perhaps it was another row's, or another answer's fault
                left.append((row, path, None))
                renewed_for = path
            else:
                failed[path] = _reason(matcher.get_error())
            if matcher.is_error():
                self._renew()
                left = [(row, path, None) for row, path, _ in left]
        return failed

    def _children(
        self, rows: DraftRows, row: int, path: tuple[int, ...], matcher: "LLMatcher"
    ) -> Iterator[tuple[int, tuple[int, ...], "LLMatcher | None"]]:
        """Yield the drafts after a row that may come, with their paths and matchers, None where one
        is to be made. The last draft takes the row's own."""
        for child in rows.children[row]:
            token, is_last = rows.tokens[child], child == rows.children[row][-1]
            branch = matcher if is_last else matcher.deep_copy()
            if branch.try_consume_tokens([token]) == 1:
                yield child, (*path, token), branch
            elif branch.is_error():
                yield child, (*path, token), None

    def _after(self, path: Iterable[int]) -> "LLMatcher":
        """Return a matcher after the answer and drafts."""
        matcher = (self._ahead or self._matcher).deep_copy()
        for token in path:
            matcher.consume_token(token)
        return matcher

    def _renew(self) -> None:
        """Follow the answer by a matcher that shares nothing with any other."""
        self._matcher, self._ahead = self._form.start(), None
        for token in self._answer:
            self._matcher.consume_token(token)


def _forced(matcher: "LLMatcher") -> list[int]:
    """Return the tokens that must come next, none if there are more than can be followed."""
    forced = matcher.compute_ff_tokens()
    return forced if len(forced) <= MOST_FORCED else []


def _follow_run(matcher: "LLMatcher", rows: DraftRows, row: int) -> int | None:
    """Follow the drafts after a row, in one call, as far as each has no sibling; put tokens that
    must come in the place of others. Returns the last row, None if it cannot come."""
    run = list[int]()
    while len(rows.children[row]) == 1:
        (row,) = rows.children[row]
        run.append(row)
    followed = matcher.try_consume_tokens([rows.tokens[each] for each in run])
    while followed < len(run) and (forced := _forced(matcher)):
        for each, token in zip(run[followed:], forced, strict=False):
            rows.tokens[each] = token
        consumed = matcher.try_consume_tokens([rows.tokens[each] for each in run[followed:]])
        if not consumed:
            break
        followed += consumed
    return row if followed == len(run) else None


def _branches(matcher: "LLMatcher", rows: DraftRows, row: int) -> Iterator[tuple[int, "LLMatcher"]]:
    """Yield the siblings after a row that may come, each with a matcher after it; if none may, the
    first, which becomes the token that must come, if any."""
    children, found = rows.children[row], False
    for child in children:
        branch = matcher.deep_copy()
        if branch.try_consume_tokens([rows.tokens[child]]) == 1:
            found = True
            yield child, branch
    if children and not found and (forced := _forced(matcher)):
        rows.tokens[children[0]] = forced[0]
        if matcher.try_consume_tokens(forced[:1]) == 1:
            yield children[0], matcher


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
