"""What the target says, and its hidden states while it says it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.common.errors import PromptError
from eagle_aot.common.self_test import MAX_NEW_TOKENS
from eagle_aot.targets import TapTarget


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its greedy continuation.

    `tokens` int64 [1, T], the first `start` of which are the prompt; `streams` [1, T - 1, n, Ht]
    holds the residual streams at the n `boundaries`, at every position but the last.
    """

    tokens: Tensor
    start: int
    boundaries: tuple[int, ...]
    streams: Tensor

    @property
    def slots(self) -> int:
        """Slot j predicts token j + 2, so that this many have something to predict."""
        return self.tokens.shape[1] - 2

    @property
    def first_anchor(self) -> int:
        """The first slot whose prediction is the target's to judge. All later ones are, too."""
        return self.start - 1

    def taps(self, layers: Sequence[int]) -> Tensor:
        """Of all slots, side by side: [1, slots, len(layers) * Ht]."""
        chosen = [self.boundaries.index(layer) for layer in layers]
        return self.streams[:, : self.slots, chosen].flatten(2)


@torch.no_grad()
def continue_greedily(
    target: TapTarget,
    prompt: Sequence[int],
    boundaries: Sequence[int],
    max_new_tokens: int,
    eos_ids: Collection[int],
    device: torch.device,
) -> Text:
    """`prompt` and up to `max_new_tokens` more, a forward for each, within the target's context.

    Leaves `boundaries` tapped: whoever needs others sets them again. Raises PromptError for ids
    outside the vocabulary.
    """
    if not prompt or not 0 <= min(prompt) <= max(prompt) < target.vocab_size:
        raise PromptError(f"self-test: prompt ids must lie in a vocabulary of {target.vocab_size}")
    target.set_eagle_tap_layers(boundaries)
    target.reset_cache()
    tokens, taps = torch.tensor([list(prompt)], device=device), []
    end = min(len(prompt) + max_new_tokens, target.max_seq_len)
    chunks = list(_chunks(len(prompt), target.sliding_window))
    while chunks:
        chunk = chunks.pop(0)
        rows = tokens[:, chunk.start : chunk.stop]
        positions = torch.arange(chunk.start, chunk.stop, device=device)
        logits, tapped = target.forward_logits_taps(rows, positions, True)
        taps.append(tapped)
        if not chunks:
            tokens = torch.cat((tokens, logits.argmax(dim=-1)), dim=1)
            length = tokens.shape[1]
            if length < end and int(tokens[0, -1]) not in eos_ids:
                chunks.append(range(length - 1, length))
    streams = torch.cat(taps, dim=1).unflatten(-1, (len(boundaries), -1))
    return Text(tokens, len(prompt), tuple(boundaries), streams)


def target_texts(
    target: TapTarget,
    taps: Sequence[int],
    prompts: Sequence[Sequence[int]],
    eos_ids: Collection[int],
    device: torch.device,
) -> list[Text]:
    """The target's answers, where the context has room for one that can be drafted, with the
    streams at `taps` and beside them. Leaves `taps` tapped, and the caches empty."""
    near = {tap + step for tap in taps for step in (-1, 0, 1)}
    boundaries = sorted(near & set(range(target.num_hidden_layers + 1)))
    try:
        texts = [
            continue_greedily(target, prompt, boundaries, MAX_NEW_TOKENS, eos_ids, device)
            for prompt in fitting(prompts, target)
        ]
    finally:
        target.set_eagle_tap_layers(taps)
        target.reset_cache()
    return [text for text in texts if text.slots > text.first_anchor]


def fitting(prompts: Sequence[Sequence[int]], target: TapTarget) -> list[Sequence[int]]:
    """Those that the context has room for, and for a token behind them."""
    return [prompt for prompt in prompts if len(prompt) + 1 < target.max_seq_len]


def _chunks(length: int, window: int) -> Iterator[range]:
    """The chunks of a prompt; a sliding window takes none that is longer than itself."""
    for first in range(0, length, window or length):
        yield range(first, min(first + (window or length), length))
