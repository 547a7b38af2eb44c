"""Sampling parameters, texts and logits for tests of logits processing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.processors import Processors, Rows

STOPS = [3, 5]
MANY = [
    SamplingParams(temperature=0.7, top_k=7, seed=1),
    SamplingParams(temperature=1.0, top_p=0.9, seed=1),
    SamplingParams(temperature=1.5, top_k=40, top_p=0.5, min_p=0.05, seed=1),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25),
    SamplingParams(
        temperature=1.0, repetition_penalty=0.8, top_p=0.999, frequency_penalty=-1.0, seed=1
    ),
    SamplingParams(temperature=0.3, logit_bias={1: 5.0, 4: -3.0}, min_tokens=50, seed=1),
    SamplingParams(temperature=1.0, allowed_ids=(2, 3, 4), top_k=1, seed=1),
    SamplingParams(),
]
"""Parameters of one sequence each."""


@dataclass(frozen=True)
class Case:
    """Logits with `levels` different values, 0 for any; rows use all of `MANY` in turn, and are
    `masked` by random bitmasks."""

    rows: int
    vocab: int
    levels: int = 0
    drafts: int = 3
    masked: bool = False

    def processed(self, device: str = "cpu") -> Tensor:
        """Return the logits after `Processors`, [R, V]."""
        generator = torch.Generator().manual_seed(self.vocab + self.rows)
        logits = torch.randn(self.rows, self.vocab, generator=generator) * 4
        if self.levels:
            logits = torch.randint(-1, self.levels, logits.shape, generator=generator).float()
        logits[:, :: max(self.vocab // 5, 6)] = -torch.inf
        processors = Processors(len(MANY), self.vocab, torch.device(device))
        texts = torch.randint(6, self.vocab, (len(MANY), 30), generator=generator)
        for sequence, sampling in enumerate(MANY):
            processors.set(sequence, sampling, texts[sequence, :20].tolist(), STOPS)
        every = torch.arange(len(MANY), device=device)
        decided = texts[:, 20:].to(device)
        processors.count(every, decided, torch.ones_like(decided, dtype=torch.bool))
        sequences = torch.arange(self.rows) % len(MANY)
        paths = torch.randint(-1, self.vocab, (self.rows, self.drafts), generator=generator)
        if self.drafts:
            paths[:, 0] = texts[sequences, 0]  # a draft token that the text contains
        words = self.rows, -(-self.vocab // 32) * 4
        bitmask = torch.randint(256, words, generator=generator, dtype=torch.uint8)
        bitmask[:: 1 + len(MANY)] = 0  # rows without any token that may be chosen
        scale = torch.tensor([1 / s.temperature if s.temperature else 0.0 for s in MANY])
        rows = Rows(
            sequences.to(device),
            (sequences + 31).to(device),
            paths.to(device) if self.drafts else None,
            bitmask.to(device) if self.masked else None,
        )
        return processors.processed(logits.to(device), scale[sequences].to(device), rows)

    def __str__(self) -> str:
        return f"{self.rows}x{self.vocab}-{self.levels}-{self.drafts}-{self.masked}"


CASES = [
    Case(8, 50),
    Case(16, 5000),
    Case(8, 10_007, levels=3),
    Case(9, 4096, drafts=0),
    Case(18, 5001, masked=True),
]
