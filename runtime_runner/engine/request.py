"""Requests to the engine, and its events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from eagle_aot.common.errors import ArtifactError, EagleError, PromptError, SettingError
from eagle_aot.common.memory import shortage
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.decode.shape import AUTO, MAX_AUTO_DEPTH, ChainLen, Shape
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.images.prompt_image import PlacedImage, TokenizedPrompt
from eagle_aot.runtime_runner.sampling.constraint import Constraint
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams

RequestId = int
Reason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """A request ends after `max_new_tokens` tokens, any of `stop_ids`, or a token for which
    `is_stop` returns True."""

    max_new_tokens: int
    stop_ids: frozenset[int]
    is_stop: Callable[[int], bool] = lambda token: False

    def cut(self, tokens: Sequence[int]) -> tuple[list[int], bool]:
        """Return the tokens up to the one that ends the text, and whether there is one."""
        for i, token in enumerate(tokens):
            if self.is_stop(token) or token in self.stop_ids:
                return [*tokens[: i + 1]], True
        return [*tokens], False


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Token ids to continue, and how.

    `chain_len` is the number of drafts a round, "auto" for as many as pay off, 0 for plain
    decoding. A `tree` replaces the chain; "auto" chooses among trees, chains and plain decoding.
    With `reuse`, cached rows of a common prefix are not run again, if they are of a request with
    the same `cache_salt`. `images` lie where the prompt has placeholder ids. `constraint` holds the
    answer to the form in `sampling`.

    The tokens depend on the prompt, the limits and the sampling alone, not on other requests.
    Raises SettingError for sampling without a seed, and PromptError for `prompt_logprobs` of a
    prompt with images, which `target_verify` cannot run.
    """

    prompt: tuple[int, ...]
    limits: Limits
    chain_len: ChainLen
    tree: Shape | Literal["auto"] | None = None
    reuse: bool = False
    cache_salt: str = ""
    sampling: SamplingParams = GREEDY
    constraint: Constraint | None = None
    images: tuple[PlacedImage, ...] = ()
    placed: TokenizedPrompt = field(init=False, compare=False, repr=False)
    """The prompt and its images."""
    shape: Shape | None = field(init=False, compare=False, repr=False)
    """Its drafts in a round, None if they are chosen round by round."""
    max_shape: Shape | None = field(init=False, compare=False, repr=False)
    """The largest drafts that it takes in a batch, None for any."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "placed", TokenizedPrompt(self.prompt, self.images))
        shape = self._shape()
        max_shape = Shape.chain(MAX_AUTO_DEPTH) if shape is None and self.tree is None else shape
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "max_shape", max_shape)
        if self.sampling.temperature and self.sampling.seed is None:
            raise SettingError(
                "sampling: a request needs a seed: draw one with `SamplingParams.drawn`"
            )
        if self.images and self.sampling.prompt_logprobs is not None:
            raise PromptError("prompt_logprobs is not supported with images: leave it out")

    def _shape(self) -> Shape | None:
        if isinstance(self.tree, Shape):
            return self.tree
        if self.tree == AUTO or self.chain_len == AUTO:
            return None
        return Shape.chain(self.chain_len)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is ever drafted."""
        return self.shape is not None and not self.shape.nodes


@dataclass(frozen=True, slots=True)
class Scored:
    """Log probabilities of a prompt's next tokens, at least one. All come before any `Tokens`."""

    request: RequestId
    logprobs: Sequence[TokenLogprobs]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next tokens of a request, at least one.

    The first `accepted` of them are drafts, of `drafted` in the round. For a tree, `ranks` are the
    accepted drafts' ranks among their siblings. `logprobs` are there if they were requested.
    """

    request: RequestId
    tokens: list[int]
    drafted: int = 0
    accepted: int = 0
    ranks: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When a request was served, in seconds of one clock, and its `sequence`."""

    sequence: int
    started: float
    first_token: float
    ended: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that stopped, reached its length or was cancelled.

    The first `reused` rows of its prompt were not run. `times` is None without a sequence.
    """

    request: RequestId
    reason: Reason
    reused: int
    stats: Stats
    times: RequestTimes | None


REFUSED = RequestId(-1)
"""The number of a prompt that never became a request."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that failed: `error` says why in one line.

    `cause` is the exception: of a forward, of one of the request's callbacks, or of a prompt that
    cannot be served.
    """

    request: RequestId
    error: str
    cause: BaseException

    @classmethod
    def of(cls, request: RequestId, error: BaseException) -> "Failed":
        """Return the event of an error, whatever its type: libraries raise some that are no
        Exception. Raises the error itself if it is to end the process."""
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise error
        return cls(request, reason(error), error)

    @property
    def is_expected(self) -> bool:
        """Whether the user can mend it; anything else is a bug, whose text is for the log alone."""
        if isinstance(self.cause, ArtifactError):
            return False
        return isinstance(self.cause, EagleError) or shortage(self.cause) is not None

    def to_json(self) -> dict[str, str]:
        """Return what stands in the place of an answer."""
        return {"error": self.error}


def reason(error: BaseException) -> str:
    """Return an error in one line, with advice where memory ran out."""
    return one_line(shortage(error) or str(error)) or type(error).__name__


Event = Scored | Tokens | Finished | Failed
