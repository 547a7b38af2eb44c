"""The speculative loop.

Shifted pairing: draft slot j holds token j + 1 and the feature of position j. So a corrected token
needs no target forward of its own, and every round costs exactly one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from eagle_aot.runtime_runner.adaptive.rounds import Rounds
from eagle_aot.runtime_runner.round import Round, rows
from eagle_aot.runtime_runner.stats import Stats


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When to stop: `room` tokens at most, or behind any of `stop_ids`."""

    room: int
    stop_ids: frozenset[int]


def generate(
    rounds: Rounds,
    prompt: Sequence[int],
    limits: Limits,
    on_tokens: Callable[[list[int]], None],
) -> tuple[list[int], Stats]:
    """Greedy continuation of `prompt`, the same for every drafter and every chain length."""
    stats = Stats(chain_len=rounds.chain_len)
    started = time.perf_counter()
    output = [prefill(rounds.begin(len(prompt)), prompt, stats)]
    on_tokens(output[:])
    prefilled = time.perf_counter()
    while output[-1] not in limits.stop_ids and (left := limits.room - len(output)) > 0:
        round_ = rounds.choose(left)
        accepted, *greedy = round_.play().tolist()  # the round's one copy to the host
        run = cut_behind_stop(greedy[: accepted + 1][:left], limits.stop_ids)
        rounds.observe(round_, accepted, run)
        stats.add_round(round_.chain_len, min(accepted, len(run)), len(run))
        output += run
        on_tokens(run)
    stats.prefill_seconds = prefilled - started
    stats.decode_seconds = time.perf_counter() - prefilled
    return output, stats


def prefill(round_: Round, prompt: Sequence[int], stats: Stats) -> int:
    """Run the prompt in chunks, ready the round, and return the first new token.

    The last draft slot of each chunk pairs with the token after the chunk.
    """
    verifier, drafter = round_.verifier, round_.drafter
    text, positions = rows(prompt, 0, round_.device)
    for chunk in verifier.plan_prompt(len(prompt)):
        input_pos = positions[chunk.start : chunk.stop]
        greedy, features = verifier.forward(text[:, chunk.start : chunk.stop], input_pos)
        stats.prefill_chunks += 1
        if drafter:
            following = torch.cat((text, greedy[:, -1:]), dim=1)[
                :, chunk.start + 1 : chunk.stop + 1
            ]
            last = positions[len(chunk) - 1 : len(chunk)]
            drafter.extend(following, features, input_pos, last)
    round_.begin(greedy[:, -1:], len(prompt))
    return int(greedy[0, -1])


def cut_behind_stop(run: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The run up to and including its first stop token."""
    for i, token in enumerate(run):
        if token in stop_ids:
            return run[: i + 1]
    return run
