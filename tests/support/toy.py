"""A toy language model behind the loop's interfaces: the next token is a function of the text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_aot.runtime_runner.chunks import plan_chunks

VOCAB = 17


def next_token(text: Sequence[int], seed: int) -> int:
    """Depends on the last four tokens, the length and a seed."""
    state = seed + len(text)
    for token in text[-4:]:
        state = (state * 1103515245 + token + 12345) % 2**31
    return (state >> 7) % VOCAB


def plain_text(prompt: Sequence[int], seed: int, length: int) -> list[int]:
    """What greedy decoding must give."""
    text = list(prompt)
    for _ in range(length):
        text.append(next_token(text, seed))
    return text[len(prompt) :]


class ToyVerifier:
    """Keeps the text as its cache and refuses gaps; the feature of position p is the number p."""

    def __init__(self, seed: int, longest: int, min_prefill: int) -> None:
        self.seed, self.longest, self.min_prefill = seed, longest, min_prefill
        self.cache: list[int] = []
        self.forwards = 0

    def plan_prompt(self, length: int) -> list[range]:
        return plan_chunks(length, self.longest, self.min_prefill, 8)

    def forward(self, tokens: Tensor, input_pos: Tensor) -> tuple[Tensor, Tensor]:
        start, rows = int(input_pos[0]), tokens.shape[1]
        assert input_pos.tolist() == list(range(start, start + rows))
        assert start <= len(self.cache), "a gap in the cache"
        self.forwards += 1
        self.cache[start:] = tokens[0].tolist()
        ends = range(start + 1, start + rows + 1)
        greedy = torch.tensor([[next_token(self.cache[:end], self.seed) for end in ends]])
        features = torch.tensor([[[float(end - 1)] for end in ends]])
        return (greedy if rows < self.min_prefill else greedy[:, -1:]), features


class RecordingDrafter:
    """Guesses right with a given pattern, and checks what it is told against the true text."""

    def __init__(
        self, text: Sequence[int], pattern: Sequence[bool], may_skip: bool = False
    ) -> None:
        self.text, self.pattern, self.may_skip = list(text), list(pattern), may_skip
        self.slots: dict[int, int] = {}
        self.proposed = 0

    def extend(self, tokens: Tensor, features: Tensor, input_pos: Tensor, last: Tensor) -> None:
        assert features.shape == (1, tokens.shape[1], 1)
        for i in range(int(last) + 1):
            slot, token = int(input_pos[i]), int(tokens[0, i])
            assert self.may_skip or slot <= len(self.slots), "a gap in the draft cache"
            assert features[0, i, 0] == slot, "the feature of another position"
            if slot + 1 < len(self.text):  # the last round may run on behind the budget
                assert token == self.text[slot + 1], "a slot pairs with the token after it"
            self.slots[slot] = token

    def catch_up(self, tokens: Tensor, features: Tensor, input_pos: Tensor) -> Tensor:
        self.extend(tokens, features, input_pos, torch.tensor([tokens.shape[1] - 1]))
        right = [self.pattern[slot % len(self.pattern)] for slot in input_pos.tolist()]
        return torch.tensor([right])

    def propose(self, count: int) -> Tensor:
        drafts = []
        for i in range(count):
            position = max(self.slots) + 2 + i
            truth = self.text[position] if position < len(self.text) else 0
            right = self.pattern[self.proposed % len(self.pattern)]
            drafts.append(truth if right else (truth + 1) % VOCAB)
            self.proposed += 1
        return torch.tensor([drafts])
