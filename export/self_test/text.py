"""The target's texts for a self-test, and the readings of a drafter that draft them."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from eagle_aot.common.errors import PromptError
from eagle_aot.common.self_test import MAX_NEW_TOKENS
from eagle_aot.targets import TapTarget


@dataclass(frozen=True, slots=True)
class TargetText:
    """A prompt and its greedy continuation.

    `tokens` int64 [1, T] begin with the `start` tokens of the prompt. `streams` [1, T - 1, n, Ht]
    are the residual streams at the n `boundaries`, at every position but the last.
    """

    tokens: Tensor
    start: int
    boundaries: tuple[int, ...]
    streams: Tensor

    @property
    def slots(self) -> int:
        """Slot j predicts token j + 2, so this many slots have a token to predict."""
        return self.tokens.shape[1] - 2

    @property
    def first_anchor(self) -> int:
        """The first slot that predicts a token of the answer; all later ones do as well."""
        return self.start - 1

    def taps(self, layers: Sequence[int]) -> Tensor:
        """Return the streams of all slots at these boundaries: [1, slots, len(layers) * Ht]."""
        chosen = [self.boundaries.index(layer) for layer in layers]
        return self.streams[:, : self.slots, chosen].flatten(2)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading:
    """Base of all readings: one way in which a drafter's files can be read.

    `remedy` says how to select it. `target_ids` int64 [Vd] are the drafter's ids in the target's
    vocabulary; ids outside of it are never right. A `misaligned` reading is a control, which gets
    the features of unrelated positions.
    """

    name: str = "as resolved"
    remedy: str | None = None
    target_ids: Tensor
    misaligned: bool = False

    def chain_logits(self, text: TargetText, steps: int) -> Iterator[Tensor]:
        """Yield the logits of each step of the chains from all anchors, float32 [A, Vd].

        Every step gets the token that the target chose, so a chain equals real drafting up to its
        first wrong draft. Row a of step s predicts token `text.first_anchor` + a + s + 2; rows
        without such a token have no meaning.
        """
        raise NotImplementedError

    def control(self) -> Self:
        """Return the same reading with features of other positions."""
        return replace(self, misaligned=True)

    def aligned(self, features: Tensor) -> Tensor:
        """Return the features [1, S, H] of all slots that this reading gets."""
        return features.roll(features.shape[1] // 2, dims=1) if self.misaligned else features


def target_texts(
    target: TapTarget,
    taps: Sequence[int],
    prompts: Sequence[Sequence[int]],
    eos_ids: Collection[int],
    device: torch.device,
) -> list[TargetText]:
    """Return the target's answers that can be drafted, with the streams at `taps` and at the
    boundaries next to them. Prompts longer than the context are left out.

    Leaves `taps` tapped, and the caches empty. Raises PromptError for ids outside the vocabulary.
    """
    near = {tap + step for tap in taps for step in (-1, 0, 1)}
    boundaries = sorted(near & set(range(target.num_hidden_layers + 1)))
    try:
        texts = [
            continue_greedily(target, prompt, boundaries, MAX_NEW_TOKENS, eos_ids, device)
            for prompt in prompts
            if len(prompt) + 1 < target.max_seq_len
        ]
    finally:
        target.set_eagle_tap_layers(taps)
        target.reset_cache()
    return [text for text in texts if text.slots > text.first_anchor]


@torch.no_grad()
def continue_greedily(
    target: TapTarget,
    prompt: Sequence[int],
    boundaries: Sequence[int],
    max_new_tokens: int,
    eos_ids: Collection[int],
    device: torch.device,
) -> TargetText:
    """Return `prompt` and up to `max_new_tokens` more tokens, within the target's context.

    Leaves `boundaries` tapped. Raises PromptError for ids outside the vocabulary.
    """
    if not prompt or not 0 <= min(prompt) <= max(prompt) < target.vocab_size:
        raise PromptError(f"self-test: prompt ids must lie in a vocabulary of {target.vocab_size}")
    target.set_eagle_tap_layers(boundaries)
    target.reset_cache()
    tokens = torch.tensor([list(prompt)], device=device)
    logits, taps = run_target(target, tokens, 0)
    streams, end = [taps], min(len(prompt) + max_new_tokens, target.max_seq_len)
    while True:
        tokens = torch.cat((tokens, logits.argmax(dim=-1)), dim=1)
        if tokens.shape[1] >= end or int(tokens[0, -1]) in eos_ids:
            break
        logits, taps = run_target(target, tokens, tokens.shape[1] - 1)
        streams.append(taps)
    tapped = torch.cat(streams, dim=1).unflatten(-1, (len(boundaries), -1))
    return TargetText(tokens, len(prompt), tuple(boundaries), tapped)


def run_target(target: TapTarget, tokens: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Run tokens int64 [1, T] from position `start` on, in chunks that a sliding window takes.

    Returns logits [1, 1, V] of the last one, and the taps [1, T - start, n * Ht] of all.
    """
    taps, stop = [], tokens.shape[1]
    chunk = target.sliding_window or stop
    for first in range(start, stop, chunk):
        positions = torch.arange(first, min(first + chunk, stop), device=tokens.device)
        logits, tapped = target.forward_logits_taps(tokens[:, positions], positions, True)
        taps.append(tapped)
    return logits, torch.cat(taps, dim=1)
