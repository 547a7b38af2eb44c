"""What is asked of the engine, and what it answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.common.memory import shortage
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.adaptive.chain_length import AUTO_LENGTH, ChainLen
from eagle_aot.runtime_runner.adaptive.shapes import AUTO_TREE, LONGEST
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.images.picture import Placed, PlacedPrompt
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams

RequestId = int
Reason = Literal["stop", "room", "cancelled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When to stop: `room` tokens at most, behind any of `stop_ids`, or behind the token of which
    `ends`, asked about each in turn, says so."""

    room: int
    stop_ids: frozenset[int]
    ends: Callable[[int], bool] = lambda token: False

    def cut(self, run: Sequence[int]) -> tuple[list[int], bool]:
        """The run up to and including the token that ends the text, and whether there is one."""
        for i, token in enumerate(run):
            if self.ends(token) or token in self.stop_ids:
                return [*run[: i + 1]], True
        return [*run], False


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Token ids to continue within `limits`, with `chain_len` drafts a round at most, or "auto" for
    as many as pay; 0 decodes plainly. A `tree` takes the chain's place, "auto" for whichever pays,
    chains and plain decoding among them. With `reuse`, rows that a cache holds of a text that began
    alike are not run again. `pictures` stand where the prompt has ids for their rows.

    Its tokens depend on the prompt, the limits and the sampling alone, and not on whoever else is
    served. Raises SettingError for sampling without a seed, and PromptError for `prompt_logprobs`
    of a prompt with pictures, which `target_verify` cannot run.
    """

    prompt: tuple[int, ...]
    limits: Limits
    chain_len: ChainLen
    tree: Shape | Literal["auto"] | None = None
    reuse: bool = False
    sampling: SamplingParams = GREEDY
    pictures: tuple[Placed, ...] = ()
    placed: PlacedPrompt = field(init=False, compare=False, repr=False)
    """The prompt and its pictures."""
    shape: Shape | None = field(init=False, compare=False, repr=False)
    """What it is drafted in a round, None for as much as pays."""
    most: Shape | None = field(init=False, compare=False, repr=False)
    """What it takes of a round at most, None for all of any."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "placed", PlacedPrompt(self.prompt, self.pictures))
        shape = self._shape()
        most = Shape.chain(LONGEST) if shape is None and self.tree is None else shape
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "most", most)
        if self.sampling.temperature and self.sampling.seed is None:
            raise SettingError(
                "sampling: a request needs a seed: draw one with `SamplingParams.drawn`"
            )
        if self.pictures and self.sampling.prompt_logprobs is not None:
            raise PromptError(
                f"prompt_logprobs {self.sampling.prompt_logprobs}: a prompt with pictures has "
                "none: leave it out"
            )

    def _shape(self) -> Shape | None:
        if isinstance(self.tree, Shape):
            return self.tree
        if self.tree == AUTO_TREE or self.chain_len == AUTO_LENGTH:
            return None
        return Shape.chain(self.chain_len)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is ever drafted."""
        return self.shape is not None and not self.shape.nodes


@dataclass(frozen=True, slots=True)
class Scored:
    """The next tokens of a request's prompt, at least one, all of which come before the first of
    `Tokens`, to whoever asked for them."""

    request: RequestId
    logprobs: Sequence[TokenLogprobs]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next tokens of a request, at least one: the first `accepted` are drafts, of `drafted`.
    Of a tree's, `ranks` are those among the drafts behind the same token. `logprobs` are the
    tokens', where they were asked for."""

    request: RequestId
    tokens: list[int]
    drafted: int = 0
    accepted: int = 0
    ranks: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When a request was served, in seconds of one clock, and which cache it had."""

    sequence: int
    started: float
    first_token: float
    ended: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A request's last event: it met one of its ends, filled its room, or was cancelled. The first
    `kept` rows of its prompt were not run. `times` is None for one that never had a cache."""

    request: RequestId
    reason: Reason
    kept: int
    stats: Stats
    times: RequestTimes | None


REFUSED = RequestId(-1)
"""The number of what never was a request."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A request's last event: `error` says in one line why there are no more tokens, of which
    `cause` is the reason: a forward that failed, a callback of its own that raised, or a prompt
    that cannot be served."""

    request: RequestId
    error: str
    cause: Exception

    def to_json(self) -> dict[str, str]:
        """In the place of an answer."""
        return {"error": self.error}


def reason(error: Exception) -> str:
    """In one line, with what to lower where memory ran out."""
    return one_line(shortage(error) or str(error)) or type(error).__name__


Event = Scored | Tokens | Finished | Failed
