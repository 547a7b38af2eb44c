"""The speculative loop.

Shifted pairing: draft slot j holds token j + 1 and the feature of position j. So a corrected token
needs no target forward of its own, and every round costs exactly one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from eagle_aot.runtime_runner.acceptance import count_accepted
from eagle_aot.runtime_runner.stats import Stats


class Verifier(Protocol):
    """The target: runs tokens at consecutive positions through its cache."""

    def plan_prompt(self, length: int) -> list[range]:
        """Consecutive chunks that cover a prompt."""

    def forward(self, tokens: Sequence[int], start: int) -> tuple[list[int], Tensor]:
        """Greedy token after the last one (prompt chunk) or after each one, and the features."""


class Drafter(Protocol):
    """Guesses how the text goes on."""

    def extend(self, tokens: Sequence[int], features: Tensor, start: int) -> None:
        """Commit slots `start`, ...: each token with the feature of the position before it."""

    def propose(self, count: int) -> list[int]:
        """The next `count` tokens, on top of what is committed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When to stop: `room` tokens at most, or behind any of `stop_ids`."""

    room: int
    chain_len: int
    stop_ids: frozenset[int]


def generate(
    verifier: Verifier,
    drafter: Drafter | None,
    prompt: Sequence[int],
    limits: Limits,
    on_tokens: Callable[[list[int]], None],
) -> tuple[list[int], Stats]:
    """Greedy continuation of `prompt`, the same for every drafter; None decodes plainly."""
    stats = Stats(chain_len=limits.chain_len)
    started = time.perf_counter()
    bonus = prefill(verifier, drafter, prompt, stats)
    output = [bonus]
    on_tokens(output[:])
    prefilled = time.perf_counter()
    position = len(prompt)
    while bonus not in limits.stop_ids and (left := limits.room - len(output)) > 0:
        drafts = drafter.propose(min(limits.chain_len, left - 1)) if drafter else []
        greedy, features = verifier.forward([bonus, *drafts], position)
        accepted = count_accepted(drafts, greedy)
        run = cut_behind_stop(greedy[: accepted + 1], limits.stop_ids)
        stats.add_round(len(drafts), min(accepted, len(run)), len(run))
        output += run
        on_tokens(run)
        if drafter and left > len(run) and run[-1] not in limits.stop_ids:
            drafter.extend(run, features[:, : len(run)], position)
        position += len(run)
        bonus = run[-1]
    stats.prefill_seconds = prefilled - started
    stats.decode_seconds = time.perf_counter() - prefilled
    return output, stats


def prefill(
    verifier: Verifier, drafter: Drafter | None, prompt: Sequence[int], stats: Stats
) -> int:
    """Run the prompt in chunks; the last slot of each pairs with the next prompt token."""
    next_token = -1
    for chunk in verifier.plan_prompt(len(prompt)):
        greedy, features = verifier.forward(prompt[chunk.start : chunk.stop], chunk.start)
        next_token = prompt[chunk.stop] if chunk.stop < len(prompt) else greedy[-1]
        if drafter:
            following = [*prompt[chunk.start + 1 : chunk.stop], next_token]
            drafter.extend(following, features, chunk.start)
        stats.prefill_chunks += 1
    return next_token


def cut_behind_stop(run: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The run up to and including its first stop token."""
    for i, token in enumerate(run):
        if token in stop_ids:
            return run[: i + 1]
    return run
