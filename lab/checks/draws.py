"""Is sampling right? Draws against the probabilities that they should have, in float64."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from eagle_aot.runtime_runner.sampling.parameters import SamplingMode, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler

LOGITS = (2.0, 1.5, 1.5, 0.3, 0.0, -0.7, -1.0, -2.5, -4.0, float("-inf"), 1.0, 0.9)
"""Logits of a small vocabulary, with equal ones and one token that is never drawn."""
PROMPT = (1, 3, 3, 10)
OUTPUT = (5, 5, 11)
"""The output before every draw."""
ROWS = 4096  # drawn at a time
POSITIONS = 10_000  # drawn with one seed
RARE = 10  # expected draws: tokens with fewer are not judged
SAMPLINGS = {
    "temperature 0.3": SamplingParams(temperature=0.3),
    "temperature 0.7": SamplingParams(temperature=0.7),
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 1.5": SamplingParams(temperature=1.5),
    "top-k 4": SamplingParams(temperature=1.0, top_k=4),
    "top-p 0.8": SamplingParams(temperature=1.0, top_p=0.8),
    "min-p 0.2": SamplingParams(temperature=1.0, min_p=0.2),
    "repetition 1.5": SamplingParams(temperature=1.0, repetition_penalty=1.5),
    "presence 1": SamplingParams(temperature=1.0, presence_penalty=1.0),
    "frequency 0.7": SamplingParams(temperature=1.0, frequency_penalty=0.7),
    "logit bias": SamplingParams(temperature=1.0, logit_bias={3: 1.0, 0: -1.0}),
    "allowed ids": SamplingParams(temperature=1.0, allowed_ids=(0, 4, 5, 7)),
    "all": SamplingParams(
        temperature=0.8, top_k=8, top_p=0.95, min_p=0.05, repetition_penalty=1.2,
        presence_penalty=-0.5, frequency_penalty=0.3, logit_bias={7: 2.0},
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Draws:
    """Statistics of `count` draws.

    `chi_square`, with `freedom` degrees, is over tokens that are not rare. `deviation` is the
    largest of a token's count, in standard deviations. `lag` is the correlation of draws at
    neighbouring positions times the root of their number.
    """

    name: str
    count: int
    chi_square: float
    freedom: int
    deviation: float
    lag: float

    @property
    def surprise(self) -> float:
        """The chi-square's distance from its mean, in standard deviations (Wilson-Hilferty)."""
        if not self.freedom:
            return 0.0
        spread = 2 / (9 * self.freedom)
        return ((self.chi_square / self.freedom) ** (1 / 3) - 1 + spread) / math.sqrt(spread)

    @property
    def fits(self) -> bool:
        """Whether such draws are not so rare that chance gives them once in ten thousand times."""
        return self.surprise < 3.7 and abs(self.lag) < 4.5 and self.deviation < 5.0

    def __str__(self) -> str:
        return (
            f"{self.name}: chi-square {self.chi_square:.1f} of {self.freedom} degrees, "
            f"{self.surprise:+.1f} deviations; largest {self.deviation:.1f}; lag {self.lag:+.1f}"
        )


def check_draws(count: int) -> Iterator[Draws]:
    """Draw `count` times with each kind of sampling."""
    for name, sampling in SAMPLINGS.items():
        yield statistics_of(name, sampling, range(count // POSITIONS), POSITIONS)


def statistics_of(
    name: str, sampling: SamplingParams, seeds: Iterable[int], positions: int
) -> Draws:
    """Draw at `positions` positions with each seed, and compare counts with probabilities."""
    counts, lag, total = torch.zeros(len(LOGITS), dtype=torch.float64), 0.0, 0
    exact = probabilities(sampling)
    for seed in seeds:
        tokens = draw(sampling, seed, positions)
        counts += torch.bincount(tokens, minlength=len(LOGITS))
        centred = (tokens == exact.argmax()).double() - exact.max()
        lag += float((centred[1:] * centred[:-1]).sum())
        total += positions
    assert not counts[exact == 0].any(), f"{name}: a token was drawn that has no probability"
    common = exact * total >= RARE
    expected = exact[common] * total
    difference = counts[common] - expected
    deviation = (expected * (1 - expected / total)).clamp(min=1e-9).sqrt()
    variance = float(exact.max() * (1 - exact.max()))
    return Draws(
        name,
        total,
        chi_square=float((difference**2 / expected).sum()),
        freedom=len(expected) - 1,
        deviation=float((difference / deviation).abs().max()),
        lag=lag / max(variance, 1e-9) / math.sqrt(total),
    )


def draw(sampling: SamplingParams, seed: int, positions: int) -> Tensor:
    """Return tokens int64 [positions], all drawn after the same prompt and output."""
    seeded = msgspec.structs.replace(sampling, seed=seed)
    sampler = Sampler(1, "cpu", length=positions + len(PROMPT), vocab=len(LOGITS))
    sampler.begin(0, seeded, PROMPT)
    sequence = torch.zeros(1, dtype=torch.int64)
    if sampler.mode == SamplingMode.PROCESSED:
        output = torch.tensor([OUTPUT])
        sampler.count(output, sequence, torch.ones_like(output, dtype=torch.bool))
    all_positions = torch.arange(len(PROMPT), positions + len(PROMPT)).unsqueeze(0)
    logits = torch.tensor(LOGITS)
    parts = [
        sampler.choose(sampler.processed(rows, part, sequence), part, sequence)
        for part in all_positions.split(ROWS, dim=1)
        for rows in [logits.expand(1, part.shape[1], -1)]
    ]
    return torch.cat(parts, dim=1)[0]


def probabilities(sampling: SamplingParams) -> Tensor:
    """Return the probabilities of a draw, float64 [V], by applying one rule after the other."""
    values = [z + sampling.logit_bias.get(token, 0.0) for token, z in enumerate(LOGITS)]
    for token in {*PROMPT, *OUTPUT}:
        z, penalty = values[token], sampling.repetition_penalty
        values[token] = z / penalty if z > 0 else z * penalty
    for token in set(OUTPUT):
        frequency = sampling.frequency_penalty * OUTPUT.count(token)
        values[token] -= sampling.presence_penalty + frequency
    if sampling.allowed_ids is not None:
        values = [z if t in sampling.allowed_ids else -math.inf for t, z in enumerate(values)]
    values = [z / sampling.temperature for z in values]
    if sampling.top_k:
        least = sorted(values, reverse=True)[sampling.top_k - 1]
        values = [z if z >= least else -math.inf for z in values]
    shares = torch.tensor(values, dtype=torch.float64).softmax(dim=0)
    above = [float(shares[shares > share + 1e-12].sum()) for share in shares]
    shares = torch.where(torch.tensor(above) < sampling.top_p, shares, 0.0)
    shares = torch.where(shares >= sampling.min_p * shares.max() - 1e-12, shares, 0.0)
    return shares / shares.sum()
