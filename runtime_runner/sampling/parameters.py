"""Sampling parameters of a request."""

import json
import secrets
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec

from eagle_aot.common.errors import ArtifactError, SettingError
from eagle_aot.common.spec import Option, check_fields, check_number

GENERATION, STRUCTURE = "Generation", "Structured outputs"
"""The headings of these options in --help."""
MIN_TEMPERATURE = 0.01
MAX_BIAS = 100.0
MAX_PENALTY = 100.0
MAX_MIN_TOKENS = (1 << 31) - 1
"""No text is longer, and the sum of this and a prompt's length fits 64 bits."""
SEED_BITS = 64
DRAWN_BITS = 32
MAX_LOGPROBS = 20
MAX_CHOICES = 65536
MAX_STRUCTURE = 1_000_000
"""Characters of a JSON schema, a regular expression or a grammar."""
STRUCTURES = "json_schema", "regex", "grammar", "choices"
"""Fields that say what an answer must match."""
LogprobsOf = Literal["model", "sampling"]
NEUTRAL = (1.0, 0.0, 0.0)
"""Penalties that change nothing."""
GENERATION_CONFIG = "generation_config.json"
RECOMMENDED = "temperature", "top_k", "top_p", "min_p", "repetition_penalty"
"""Fields that are read from `GENERATION_CONFIG`."""


def read_json_schema(text: str) -> str:
    """Return the schema in an option's word, or in the file that it names. Raises ValueError."""
    return text if text.lstrip().startswith("{") else read_text(text)


def read_text(path: str) -> str:
    """Return a file's text. Raises ValueError."""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"no readable file {path}") from error


class SamplingMode(IntEnum):
    """What choosing a token needs. Each mode includes the modes before it."""

    GREEDY = 0
    SAMPLED = 1
    """With a temperature."""
    PROCESSED = 2
    """With logits processors, too."""


class SamplingParams(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Sampling parameters, with the names of transformers and OpenAI's API. By default no logits
    processor is on.

    At most one of `json_schema`, `regex`, `grammar` and `choices` says what the answer must match.
    Tokens that it forbids are never chosen. The others are applied in this order: `logit_bias`,
    `repetition_penalty`, `presence_penalty` and `frequency_penalty`, `allowed_ids`, `min_tokens`,
    `temperature`, `top_k`, `top_p`, `min_p`.
    Tokens that are as likely as the last one kept are kept as well. The token that is then drawn
    follows from `seed`; None means that a seed is still to be drawn.

    No token depends on `logprobs`, `logprobs_of` and `prompt_logprobs`. A prompt's log
    probabilities are always those of the model. Where `logprobs_of` is "sampling", a temperature of
    0 counts as 1.

    Raises SettingError for a value outside its range.
    """

    temperature: Annotated[float, Option(
        "Divides the logits. 0 takes the likeliest token.", GENERATION, "T", least=0.0,
        most=100.0)] = 0.0  # fmt: skip
    top_k: Annotated[int, Option(
        "Keep the N likeliest tokens; 0 keeps all.", GENERATION, "N", least=0)] = 0  # fmt: skip
    top_p: Annotated[float, Option(
        "Keep the fewest likeliest tokens whose probabilities sum to P.", GENERATION, "P",
        least=0.0, most=1.0)] = 1.0  # fmt: skip
    min_p: Annotated[float, Option(
        "Keep tokens with at least P times the probability of the likeliest one.", GENERATION, "P",
        least=0.0, most=1.0)] = 0.0  # fmt: skip
    repetition_penalty: Annotated[float, Option(
        "Divides positive logits of tokens in prompt or answer, and multiplies negative ones.",
        least=1 / MAX_PENALTY, most=MAX_PENALTY, shown=False)] = 1.0  # fmt: skip
    presence_penalty: Annotated[float, Option(
        "Subtracted from the logits of tokens in the answer.", least=-MAX_PENALTY, most=MAX_PENALTY,
        shown=False)] = 0.0  # fmt: skip
    frequency_penalty: Annotated[float, Option(
        "Subtracted from a token's logit for each time it is in the answer.", least=-MAX_PENALTY,
        most=MAX_PENALTY, shown=False)] = 0.0  # fmt: skip
    logit_bias: Annotated[dict[int, float], Option(
        "Added to the logits of token ids.", shown=False)] = {}  # fmt: skip
    allowed_ids: Annotated[tuple[int, ...] | None, Option(
        "The only token ids that may be chosen.", shown=False)] = None  # fmt: skip
    min_tokens: Annotated[int, Option(
        "No stop id is chosen among the first N tokens.", least=0, most=MAX_MIN_TOKENS,
        shown=False)] = 0  # fmt: skip
    json_schema: Annotated[str | dict[str, Any] | None, Option(
        "Answer with JSON that matches a schema.", STRUCTURE, "FILE|TEXT",
        parse=read_json_schema)] = None  # fmt: skip
    regex: Annotated[str | None, Option(
        "Answer with a text that matches a regular expression.", STRUCTURE,
        "REGEX")] = None  # fmt: skip
    grammar: Annotated[str | None, Option(
        "Answer with a text of a Lark grammar, as llguidance reads it.", STRUCTURE, "FILE",
        parse=read_text)] = None  # fmt: skip
    choices: Annotated[tuple[str, ...] | None, Option(
        "Answer with one of these texts.", STRUCTURE, "A,B", commas=True)] = None  # fmt: skip
    seed: Annotated[int | None, Option(
        "Random seed; drawn and printed if omitted.", GENERATION, "S", least=0,
        most=(1 << SEED_BITS) - 1)] = None  # fmt: skip
    logprobs: Annotated[int | None, Option(
        "Add log probabilities of each token and of the N likeliest tokens to the JSON output.",
        GENERATION, "N", least=0, most=MAX_LOGPROBS)] = None  # fmt: skip
    logprobs_of: Annotated[LogprobsOf, Option(
        "Log probabilities of the model's logits, or of the distribution that tokens are drawn "
        "from.", shown=False)] = "model"  # fmt: skip
    prompt_logprobs: Annotated[int | None, Option(
        "Return log probabilities of the prompt's tokens, too.", least=0, most=MAX_LOGPROBS,
        shown=False)] = None  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self, by_flag=False)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise SettingError(
                f"temperature {self.temperature}: must be at least {MIN_TEMPERATURE}, or 0 for the "
                "likeliest token"
            )
        if self.top_p == 0:
            raise SettingError("top_p 0: must be above 0; a temperature of 0 is greedy")
        for token, bias in self.logit_bias.items():
            check_number("logit_bias of token", token, int, 0)
            check_number(f"logit_bias of token {token}", bias, float, -MAX_BIAS, MAX_BIAS)
        if self.allowed_ids is not None and not self.allowed_ids:
            raise SettingError("allowed_ids: none is allowed: name at least one, or leave it out")
        for token in self.allowed_ids or ():
            check_number("allowed_ids: token", token, int, 0)
        if self.structure is not None:
            self._check_structure()

    def _check_structure(self) -> None:
        """Raise SettingError for two structures, a huge one, and what might leave no token."""
        names = [name for name in STRUCTURES if getattr(self, name) is not None]
        if len(names) > 1:
            raise SettingError(f"{names[0]} and {names[1]}: an answer has one form: leave out one")
        for other in ("allowed_ids", "min_tokens"):
            if getattr(self, other):
                raise SettingError(f"{names[0]} does not go with {other}: leave out one")
        if len(self.choices or ()) > MAX_CHOICES:
            raise SettingError(f"choices: {len(self.choices or ())}: at most {MAX_CHOICES}")
        if self.choices is not None and not (self.choices and all(self.choices)):
            raise SettingError("choices: none or an empty one: name at least one text")
        size = len(str(getattr(self, names[0])))
        if size > MAX_STRUCTURE:
            raise SettingError(f"{names[0]}: {size} characters: at most {MAX_STRUCTURE}")

    @property
    def structure(self) -> tuple[str, Any] | None:
        """The name and the value of what the answer must match, None if there is none."""
        values = ((name, getattr(self, name)) for name in STRUCTURES)
        return next((pair for pair in values if pair[1] is not None), None)

    @property
    def penalties(self) -> tuple[float, float, float]:
        """The penalties of repetition, presence and frequency."""
        return self.repetition_penalty, self.presence_penalty, self.frequency_penalty

    @property
    def mode(self) -> SamplingMode:
        """The least mode that can choose the tokens."""
        filters = self.top_k > 0 or self.top_p < 1 or self.min_p > 0
        changed = self.penalties != NEUTRAL or self.logit_bias or self.min_tokens
        changed = changed or self.structure is not None
        if changed or self.allowed_ids is not None or (filters and self.temperature):
            return SamplingMode.PROCESSED
        return SamplingMode.SAMPLED if self.temperature else SamplingMode.GREEDY

    def check_vocabulary(self, size: int, stop_ids: frozenset[int]) -> None:
        """Raise SettingError for an id outside the vocabulary, and where no token could be
        chosen."""
        for token in (*self.logit_bias, *(self.allowed_ids or ())):
            if token >= size:
                field = "logit_bias" if token in self.logit_bias else "allowed_ids"
                raise SettingError(f"{field}: token {token} is outside the vocabulary of {size}")
        if self.min_tokens and stop_ids.issuperset(self.allowed_ids or [-1]):
            raise SettingError(
                f"min_tokens {self.min_tokens}: every one of allowed_ids would end the text"
            )

    def drawn(self) -> Self:
        """Return the parameters with a new seed if they sample and have none."""
        if self.seed is not None or not self.temperature:
            return self
        return msgspec.structs.replace(self, seed=secrets.randbits(DRAWN_BITS))


GREEDY = SamplingParams()
"""Takes the likeliest token, always."""


def recommended(directory: Path) -> dict[str, Any]:
    """Return the parameters that the makers of the model in an artifact's directory recommend, by
    field; empty if they recommend none, or greedy decoding. Raises ArtifactError for a file that
    cannot be read."""
    path = directory / GENERATION_CONFIG
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ArtifactError(f"{path}: not readable: export again") from error
    if not isinstance(config, dict) or not config.get("do_sample"):
        return {}
    values = {name: config[name] for name in RECOMMENDED if config.get(name) is not None}
    return {"temperature": 1.0, **values}
