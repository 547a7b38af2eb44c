"""Draws against the probabilities that they should have, computed in float64."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.runtime_runner.sampling.parameters import SamplingMode, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler

LOGITS = (2.0, 1.5, 1.5, 0.3, 0.0, -0.7, -1.0, -2.5, -4.0, float("-inf"), 1.0, 0.9)
"""Of a vocabulary that can be counted, with equals and a token that never comes."""
PROMPT = (1, 3, 3, 10)
ANSWER = (5, 5, 11)
"""What has been said before every draw."""
ROWS = 4096  # at a time
RARE = 10  # expected draws: tokens of fewer are not judged
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
    """`chi_square` of `freedom` degrees, of tokens that are not rare; `deviation` is the largest,
    in standard deviations of its token's count; `lag` the correlation of one position's draws with
    the next one's, times the root of their number."""

    name: str
    count: int
    chi_square: float
    freedom: int
    deviation: float
    lag: float

    @property
    def surprise(self) -> float:
        """Standard deviations from what chance gives (Wilson and Hilferty's approximation)."""
        if not self.freedom:
            return 0.0
        spread = 2 / (9 * self.freedom)
        return ((self.chi_square / self.freedom) ** (1 / 3) - 1 + spread) / math.sqrt(spread)

    @property
    def fits(self) -> bool:
        """Whether chance gives such draws but once in ten thousand times."""
        return self.surprise < 3.7 and abs(self.lag) < 4.5 and self.deviation < 5.0

    def __str__(self) -> str:
        return (
            f"{self.name}: chi-square {self.chi_square:.1f} of {self.freedom} degrees, "
            f"{self.surprise:+.1f} deviations; largest {self.deviation:.1f}; lag {self.lag:+.1f}"
        )


def drawn(name: str, sampling: SamplingParams, seeds: Iterable[int], positions: int) -> Draws:
    """Draws at so many positions with each of the seeds."""
    counts, lag, total = torch.zeros(len(LOGITS), dtype=torch.float64), 0.0, 0
    exact = probabilities(sampling)
    for seed in seeds:
        tokens = draw(sampling, seed, positions)
        counts += torch.bincount(tokens, minlength=len(LOGITS))
        rare = (tokens == exact.argmax()).double() - exact.max()
        lag += float((rare[1:] * rare[:-1]).sum())
        total += positions
    assert not counts[exact == 0].any(), f"{name}: a token came that may not"
    often = exact * total >= RARE
    expected = exact[often] * total
    apart = counts[often] - expected
    largest = (apart / (expected * (1 - expected / total)).clamp(min=1e-9).sqrt()).abs().max()
    variance = float(exact.max() * (1 - exact.max()))
    return Draws(
        name, total, float((apart**2 / expected).sum()), len(expected) - 1, float(largest),
        lag / max(variance, 1e-9) / math.sqrt(total),
    )  # fmt: skip


def draw(sampling: SamplingParams, seed: int, positions: int) -> Tensor:
    """int64 [positions], all behind the same prompt and answer."""
    asked = SamplingParams(**{**vars(sampling), "seed": seed})
    sampler = Sampler(1, "cpu", length=positions + len(PROMPT), vocab=len(LOGITS))
    sampler.begin(0, asked, PROMPT)
    sequence = torch.zeros(1, dtype=torch.int64)
    if sampler.kind == SamplingMode.PROCESSED:
        said = torch.tensor([ANSWER])
        sampler.count(said, sequence, torch.ones_like(said, dtype=torch.bool))
    every = torch.arange(len(PROMPT), positions + len(PROMPT)).unsqueeze(0)
    logits = torch.tensor(LOGITS)
    parts = [
        sampler.choose(sampler.processed(rows, part, sequence), part, sequence)
        for part in every.split(ROWS, dim=1)
        for rows in [logits.expand(1, part.shape[1], -1)]
    ]
    return torch.cat(parts, dim=1)[0]


def probabilities(asked: SamplingParams) -> Tensor:
    """What they should be, float64 [V]: by plain numbers, one rule after the other."""
    values = [z + asked.logit_bias.get(token, 0.0) for token, z in enumerate(LOGITS)]
    for token in {*PROMPT, *ANSWER}:
        z, penalty = values[token], asked.repetition_penalty
        values[token] = z / penalty if z > 0 else z * penalty
    for token in set(ANSWER):
        values[token] -= asked.presence_penalty + asked.frequency_penalty * ANSWER.count(token)
    if asked.allowed_ids is not None:
        values = [z if t in asked.allowed_ids else -math.inf for t, z in enumerate(values)]
    values = [z / asked.temperature for z in values]
    if asked.top_k:
        least = sorted(values, reverse=True)[asked.top_k - 1]
        values = [z if z >= least else -math.inf for z in values]
    shares = torch.tensor(values, dtype=torch.float64).softmax(dim=0)
    above = [float(shares[shares > share + 1e-12].sum()) for share in shares]
    shares = torch.where(torch.tensor(above) < asked.top_p, shares, 0.0)
    shares = torch.where(shares >= asked.min_p * shares.max() - 1e-12, shares, 0.0)
    return shares / shares.sum()
