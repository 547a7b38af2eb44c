"""How a request's tokens are to be chosen."""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, Self, get_args

from eagle_aot.common.errors import SettingError

MAX_TEMPERATURE, MIN_TEMPERATURE = 100.0, 0.01
MAX_BIAS = 100.0
MAX_PENALTY = 100.0
MAX_MIN_TOKENS = (1 << 31) - 1
"""No text is longer, and 64 bits hold a prompt's length and this."""
SEED_BITS = 64
DRAWN_BITS = 32
MAX_LOGPROBS = 20
LogprobsOf = Literal["model", "sampling"]
NEUTRAL = (1.0, 0.0, 0.0)
"""Penalties that change nothing."""


class SamplingMode(IntEnum):
    """Kinds of choosing, each of which can do all that those before it do."""

    GREEDY = 0
    SAMPLED = 1
    """With a temperature."""
    PROCESSED = 2
    """And with everything else."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """As in transformers and OpenAI's API, and nothing of it on unless it is asked for.

    In this order: `logit_bias` is added to the logits of token ids; those of ids that the text has,
    prompt included, are divided by `repetition_penalty`, or multiplied where they are negative;
    those that were generated lose `presence_penalty`, and `frequency_penalty` for each time; ids
    outside `allowed_ids` are left out, and stop ids among the first `min_tokens`. Of what is left,
    divided by `temperature`, stay the `top_k` largest, then the fewest whose probabilities sum to
    `top_p`, then those of at least `min_p` times the largest probability; equals of the last that
    stays do as well. A temperature of 0 takes the likeliest token.

    Which one it is follows from `seed`; None is for one that is yet to be drawn.

    With `logprobs`, each token's log probability is told, and those of so many of the likeliest:
    of the "model", softmax of its logits, or of the "sampling" that the token was drawn by, with
    all of the above; there a temperature of 0 counts as 1. With `prompt_logprobs` the same is told
    of the prompt's tokens, always of the model. No token depends on either.

    Raises SettingError for a value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    seed: int | None = None
    logprobs: int | None = None
    logprobs_of: LogprobsOf = "model"
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        number("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise SettingError(
                f"temperature {self.temperature}: must be at least {MIN_TEMPERATURE}, or 0 for the "
                "likeliest token"
            )
        whole("top_k", self.top_k, 0)
        number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise SettingError("top_p 0: must be above 0; a temperature of 0 is greedy")
        number("min_p", self.min_p, 0.0, 1.0)
        number("repetition_penalty", self.repetition_penalty, 1 / MAX_PENALTY, MAX_PENALTY)
        number("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        number("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        for token, bias in dict(self.logit_bias).items():
            whole("logit_bias of token", token, 0)
            number(f"logit_bias of token {token}", bias, -MAX_BIAS, MAX_BIAS)
        self._check_allowed()
        whole("min_tokens", self.min_tokens, 0, MAX_MIN_TOKENS)
        if self.seed is not None:
            whole("seed", self.seed, 0, (1 << SEED_BITS) - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(self, name)) is not None:
                whole(name, count, 0, MAX_LOGPROBS)
        if self.logprobs_of not in (known := get_args(LogprobsOf)):
            raise SettingError(f"logprobs_of {self.logprobs_of}: must be one of {', '.join(known)}")

    def _check_allowed(self) -> None:
        if self.allowed_ids is None:
            return
        if not self.allowed_ids:
            raise SettingError("allowed_ids: none is allowed: name at least one, or leave it out")
        for token in self.allowed_ids:
            whole("allowed_ids: token", token, 0)

    @property
    def penalties(self) -> tuple[float, float, float]:
        """Of repetition, presence and frequency."""
        return self.repetition_penalty, self.presence_penalty, self.frequency_penalty

    @property
    def kind(self) -> SamplingMode:
        """What choosing its tokens takes."""
        filters = self.top_k > 0 or self.top_p < 1 or self.min_p > 0
        changed = self.penalties != NEUTRAL or self.logit_bias or self.min_tokens
        if changed or self.allowed_ids is not None or (filters and self.temperature):
            return SamplingMode.PROCESSED
        return SamplingMode.SAMPLED if self.temperature else SamplingMode.GREEDY

    def check_vocabulary(self, size: int, stop_ids: frozenset[int]) -> None:
        """Raise SettingError for an id outside the vocabulary, and where nothing would be left."""
        for token in (*self.logit_bias, *(self.allowed_ids or ())):
            if token >= size:
                where = "logit_bias" if token in self.logit_bias else "allowed_ids"
                raise SettingError(f"{where}: token {token} is outside the vocabulary of {size}")
        if self.min_tokens and stop_ids.issuperset(self.allowed_ids or [-1]):
            raise SettingError(
                f"min_tokens {self.min_tokens}: every one of allowed_ids would end the text"
            )

    def drawn(self) -> Self:
        """With a seed: a new one where it needs one and has none."""
        if self.seed is not None or not self.temperature:
            return self
        return replace(self, seed=secrets.randbits(DRAWN_BITS))


def number(name: str, value: Any, least: float, most: float) -> None:
    """Raise SettingError unless it is a number of that range; NaN is of none."""
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or not least <= value <= most:
        raise SettingError(f"{name} {value}: must be a number from {least:g} to {most:g}")


def whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise SettingError unless it is a whole number of that range."""
    if type(value) is not int or value < least or (most is not None and value > most):
        bound = f"at least {least}" if most is None else f"from {least} to {most}"
        raise SettingError(f"{name} {value}: must be a whole number {bound}")


GREEDY = SamplingParams()
"""The likeliest token, always."""
