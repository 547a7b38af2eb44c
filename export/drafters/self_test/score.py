"""How well a reading drafts a text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.export.drafters.self_test.text import Text

UNIFORM = 0.001
"""Share of the uniform distribution that is mixed into a head's: nats stay finite for a token that
it cannot draft, and one sure mistake does not outweigh everything else."""


@dataclass(frozen=True, slots=True)
class Score:
    """Of a text, or of several one behind the other.

    For A anchors and K steps: `hits` bool [A, K], whether a draft is the target's token; `nats`
    float32 [A, K], the cross entropy of that token; `labelled` bool [A, K], whether there is one.
    `labels` int64 [A] are the tokens that first drafts are held against; `rounds` are those of
    the texts decoded speculatively.
    """

    hits: Tensor
    nats: Tensor
    labelled: Tensor
    labels: Tensor
    rounds: "Rounds"

    @classmethod
    def total(cls, parts: Sequence["Score"]) -> "Score":
        """Of all texts."""
        return cls(
            hits=torch.cat([part.hits for part in parts]),
            nats=torch.cat([part.nats for part in parts]),
            labelled=torch.cat([part.labelled for part in parts]),
            labels=torch.cat([part.labels for part in parts]),
            rounds=Rounds.total(part.rounds for part in parts),
        )

    @property
    def mean_nats(self) -> float:
        """Over all drafts."""
        return float(self.nats[self.labelled].mean())


@dataclass(frozen=True, slots=True)
class Rounds:
    """Counts as the runner's: `rounds`, tokens `emitted` by them; of draft i, the rounds that
    `reached[i]` and `accepted[i]` it."""

    rounds: int
    emitted: int
    reached: tuple[int, ...]
    accepted: tuple[int, ...]

    @classmethod
    def total(cls, parts: Iterable["Rounds"]) -> "Rounds":
        """Of all texts, at least one, drafted with one chain length."""
        every = list(parts)
        return cls(
            sum(part.rounds for part in every),
            sum(part.emitted for part in every),
            tuple(map(sum, zip(*(part.reached for part in every), strict=True))),
            tuple(map(sum, zip(*(part.accepted for part in every), strict=True))),
        )

    @property
    def tau(self) -> float:
        """Tokens per round."""
        return self.emitted / self.rounds

    @property
    def acceptance_by_position(self) -> list[float]:
        """Accepted over reached, as far as drafts were reached."""
        pairs = zip(self.accepted, self.reached, strict=True)
        return [accepted / reached for accepted, reached in pairs if reached]


def score_steps(steps: Iterable[Tensor], text: Text, target_ids: Tensor, vocab_size: int) -> Score:
    """Chains from every anchor of a text, which has at least one.

    `steps` are the logits float32 [A, Vd] of each step of a chain, over drafts that stand for
    `target_ids` int64 [Vd] of a vocabulary of `vocab_size`.
    """
    tokens, columns = text.tokens[0], []
    for step, logits in enumerate(steps):
        predicted = torch.arange(text.slots - text.first_anchor, device=tokens.device)
        predicted = predicted + text.first_anchor + step + 2
        labels = tokens[predicted.clamp(max=len(tokens) - 1)]
        shares = logits.softmax(-1).nan_to_num()  # what overflows is worth nothing
        drafted = shares.masked_fill(target_ids != labels[:, None], 0.0).sum(-1)
        nats = -((1 - UNIFORM) * drafted + UNIFORM / vocab_size).log()
        hits = target_ids[logits.argmax(-1)] == labels
        columns.append((hits, nats, predicted < len(tokens), labels))
    hits, nats, labelled = (torch.stack([c[i] for c in columns], dim=1).cpu() for i in range(3))
    rounds = replay(hits, text.tokens.shape[1] - text.start)
    return Score(hits, nats, labelled, columns[0][3].cpu(), rounds)


def replay(hits: Tensor, new_tokens: int) -> Rounds:
    """The rounds that decode `new_tokens`, the first of which prefill gives, with chains `hits`."""
    steps = hits.shape[1]
    leading = hits.long().cumprod(dim=1).sum(dim=1).tolist()
    known, rounds, reached, accepted = 1, 0, [0] * steps, [0] * steps
    while known < new_tokens:
        gain = min(leading[known - 1] + 1, new_tokens - known)
        for i in range(min(steps, gain)):
            reached[i] += 1
            accepted[i] += i < min(leading[known - 1], gain)
        known, rounds = known + gain, rounds + 1
    return Rounds(rounds, new_tokens - 1, tuple(reached), tuple(accepted))
