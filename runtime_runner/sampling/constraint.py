"""Structured outputs: texts that match a JSON schema, a regular expression, a grammar or a choice.

llguidance decides which tokens may follow a text. Nothing else in the project calls it, so that
another library could take its place.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from eagle_aot.common.errors import EagleError, SettingError, UnsupportedError
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams

if TYPE_CHECKING:
    from llguidance import LLMatcher

LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON is written as by Python's json.dumps: where any blanks are allowed, some models write
nothing else. A schema may say otherwise under the key x-guidance."""
LONGEST_REASON = 300
"""Characters of llguidance's own words in an error."""


class ConstraintError(EagleError):
    """A text cannot be continued, because its constraint became too complex to follow."""


class Constraint(Protocol):
    """What one answer must match, and the tokens that it has so far."""

    def advance(self, token: int) -> None:
        """Append a token to the answer. Raises ConstraintError if no answer can continue so."""

    def forbidden(self, path: Sequence[int]) -> Tensor | None:
        """Return which tokens may not follow the answer and the drafts of `path`: bool [V].

        None if the path leaves the constraint or ends the answer: what follows is never used.
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

    def compile(self, sampling: SamplingParams) -> Constraint | None:
        """Return the constraint of a new answer, None if there is none. Raises SettingError for one
        that cannot be read."""
        from llguidance import LLMatcher, LLParserLimits

        if sampling.structure is None:
            return None
        name, value = sampling.structure
        try:
            grammar = _grammar(name, value)
        except ValueError as error:
            raise SettingError(f"{name}: {_reason(str(error))}") from error
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        constraint = LLGuidanceConstraint(matcher, self._vocab)
        if matcher.is_error() or constraint.forbidden([]) is None:  # some errors show up only here
            raise SettingError(f"{name}: {_reason(matcher.get_error())}")
        return constraint


class LLGuidanceConstraint:
    """A `Constraint` that llguidance's matcher follows."""

    def __init__(self, matcher: "LLMatcher", vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab

    def advance(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            raise ConstraintError(f"the answer's form: {_reason(self._matcher.get_error())}")

    def forbidden(self, path: Sequence[int]) -> Tensor | None:
        if self._matcher.validate_tokens([*path]) < len(path):
            return None
        consumed = self._matcher.try_consume_tokens([*path])
        mask = self._matcher.compute_bitmask()
        if consumed:
            self._matcher.rollback(consumed)
        return None if self._matcher.is_error() else ~_unpacked(mask, self._vocab)


def _grammar(name: str, value: Any) -> str:
    """Return a constraint in llguidance's form. Raises ValueError."""
    from llguidance import LLMatcher

    if name == "json_schema":
        return LLMatcher.grammar_from_json_schema(value, defaults=LAYOUT)
    if name == "regex":
        return LLMatcher.grammar_from_regex(value)
    if name == "choices":
        # as one terminal: the time to compile alternatives of a rule grows with their square
        value = f"start: CHOICE\nCHOICE: {' | '.join(map(json.dumps, value))}"
    return LLMatcher.grammar_from_lark(value)


def _reason(error: str) -> str:
    """Return the first line of llguidance's error."""
    return next(iter(error.splitlines()), "not readable")[:LONGEST_REASON]


def _unpacked(mask: bytes, vocab: int) -> Tensor:
    """Return the bits of a mask, the lowest of each byte first: bool [V]."""
    bits = torch.frombuffer(bytearray(mask), dtype=torch.uint8).unsqueeze(1)
    return (bits >> torch.arange(8) & 1).bool().flatten()[:vocab]
