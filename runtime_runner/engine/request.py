"""What is asked of the engine, and what it answers."""

from dataclasses import dataclass
from typing import Literal

from eagle_aot.runtime_runner.generate import Limits
from eagle_aot.runtime_runner.stats import Stats

RequestId = int
Reason = Literal["stop", "room", "cancelled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Token ids to continue within `limits`, with `chain_len` drafts a round at most; 0 decodes
    plainly. Its tokens are the same whatever the chain length, and whoever else is served."""

    prompt: tuple[int, ...]
    limits: Limits
    chain_len: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next tokens of a request, at least one."""

    request: RequestId
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Finished:
    """A request's last event: it met one of its ends, filled its room, or was cancelled."""

    request: RequestId
    reason: Reason
    stats: Stats


@dataclass(frozen=True, slots=True)
class Failed:
    """A request's last event: `error` says in one line why there are no more tokens."""

    request: RequestId
    error: str


Event = Tokens | Finished | Failed
