"""The speculative loop."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from eagle_aot.runtime_runner.acceptance import committed
from eagle_aot.runtime_runner.adaptive.schedule import Schedule
from eagle_aot.runtime_runner.round import Round
from eagle_aot.runtime_runner.sampling import greedy
from eagle_aot.runtime_runner.stats import Stats


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


def generate(
    schedule: Schedule,
    prompt: Sequence[int],
    limits: Limits,
    on_tokens: Callable[[list[int]], None],
    kept: int = 0,
) -> tuple[list[int], Stats]:
    """Greedy continuation of `prompt`, the same for every drafter and every chain length, and
    whether or not its first `kept` rows were in the cache."""
    stats = Stats(chain_len=schedule.chain_len)
    started = time.perf_counter()
    first = prefill(schedule.begin(len(prompt)), prompt, stats, kept=kept)
    output, ended = limits.cut([first])
    on_tokens(output[:])
    prefilled = time.perf_counter()
    while not ended and (left := limits.room - len(output)) > 0:
        round_ = schedule.choose(left)
        accepted, *tokens = round_.play()[0].tolist()  # the round's one copy to the host
        run, ended = limits.cut(tokens[: accepted + 1][:left])
        schedule.observe(round_, accepted, run)
        stats.add_round(round_.chain_len, min(accepted, len(run)), len(run))
        output += run
        on_tokens(run)
    stats.prefill_seconds = prefilled - started
    stats.decode_seconds = time.perf_counter() - prefilled
    return output, stats


def prefill(
    round_: Round, prompt: Sequence[int], stats: Stats, index: int = 0, kept: int = 0
) -> int:
    """Run the prompt of the sequence at `index` in chunks, but for its first `kept` rows, ready the
    round for it, and return the first new token.

    What a drafter is shown of a chunk ends with the token after the chunk.
    """
    running, target = round_.running, round_.target
    text = torch.tensor([list(prompt)], dtype=torch.int64, device=round_.device)
    positions = torch.arange(len(prompt), device=round_.device)
    sequence = running.sequences[index : index + 1]
    for chunk in target.plan_prompt(len(prompt), kept):
        input_pos = positions[chunk.start : chunk.stop]
        tokens = text[:, chunk.start : chunk.stop]
        logits, features = target.run_prompt(tokens, input_pos, sequence, chunk)
        bonus = greedy(logits[:, -1:])
        stats.prefill_chunks += 1
        if round_.drafter:
            following = torch.cat((text, bonus), dim=1)[:, chunk.start + 1 : chunk.stop + 1]
            round_.drafter.observe(committed(following, input_pos, sequence), features)
    running.place(bonus, len(prompt), index)
    return int(bonus)
