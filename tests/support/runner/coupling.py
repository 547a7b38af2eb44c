"""Drafts of a text that is sampled: whether each was right, and how often the best pair of draws
would be."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from eagle_aot.common.prompts import Prompt
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.prefill import prefill
from eagle_aot.runtime_runner.decode.round import BatchState, Round
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.decode.step import StepRows
from eagle_aot.runtime_runner.decode.target import Forward, Target
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.engine.request_checks import check_prompt
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler


class SampledDraft(NamedTuple):
    """Whether a draft was accepted, and the sum of min(p, q) over all tokens, which is the largest
    chance that a draw from the head's distribution q equals one from the target's p."""

    accepted: float
    optimum: float


class RecordingTarget:
    """A target that keeps the logits of its last step."""

    def __init__(self, target: Target) -> None:
        self._target, self.tail, self.copies = target, target.tail, target.copies
        self.max_rows = target.max_rows
        self.rewind, self.window, self.never = target.rewind, target.window, target.never
        self.plan_prompt, self.run_prompt = target.plan_prompt, target.run_prompt
        self.plan_around, self.given_rows = target.plan_around, target.given_rows
        self.run_given = target.run_given
        self.copy_rows = target.copy_rows

    def verify(self, step: StepRows, moves: Tensor) -> Forward:
        forward = self._target.verify(step, moves)
        self.last_logits = forward.logits
        return forward


@torch.no_grad()
def sampled_drafts(
    runner: Runner, drafter: Eagle3Drafter, prompt: Prompt, sampling: SamplingParams, tokens: int
) -> Iterator[SampledDraft]:
    """Decode one text with one draft a round, and yield each round's draft."""
    ids, constants, device = runner.encode(prompt), runner.constants, runner.executor.device
    check_prompt(ids, constants)
    sampler = Sampler(1, device, constants.max_seq_len, constants.vocab_size)
    sampler.begin(0, sampling, ids)
    target = RecordingTarget(runner.target)
    running = BatchState([0], constants.tail, device, sampler)
    round_ = Round(target, drafter, 1, running)
    prefill(round_, ids, Stats(chain_len=1))
    left = min(tokens, constants.max_seq_len - len(ids) - constants.tail)
    while left > 0:
        head_probs = probabilities(drafter.logits(running.sequences)[0, 0], sampling)
        (outcome,) = round_.outcomes(round_.step())
        target_probs = probabilities(target.last_logits[0, 0], sampling)
        if drafter.target_ids is not None:
            target_probs = target_probs[drafter.target_ids]
        optimum = torch.minimum(target_probs, head_probs).sum()
        yield SampledDraft(float(outcome.accepted == 1), float(optimum))
        emitted = outcome.tokens[: outcome.accepted + 1]
        left -= len(emitted)
        if {*constants.eos_ids} & {*emitted}:
            return


def probabilities(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """float32 [V] -> float64 [V]."""
    return (logits.double() / sampling.temperature).softmax(dim=0)
