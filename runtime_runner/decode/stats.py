"""Statistics of generations: their cost, and the acceptance of their drafts."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

from eagle_aot.runtime_runner.decode.shape import AUTO, ChainLen, Shape


@dataclass(kw_only=True, slots=True)
class Stats:
    """Counts of one generation, or of several.

    `reached[i]` counts the rounds that looked at draft i, since all drafts before it were accepted,
    and `accepted_at[i]` those that accepted it. Drafts after a stop token are not counted.
    `accepted_lengths[n]` counts the rounds with n accepted drafts, `rounds_by_chain_len[k]` the
    rounds with k drafts, and `rounds_by_shape` the rounds by the names of their shapes, where these
    are chosen. In a tree, draft i is any draft at depth i + 1. `looked_at` counts the drafts whose
    parents were accepted; `offered_at_rank[r]` and `accepted_at_rank[r]` count such drafts, and the
    accepted ones of them, that have r likelier siblings.
    """

    chain_len: ChainLen
    tree: Shape | Literal["auto"] | None = None
    prefill_chunks: int = 0
    rounds: int = 0
    emitted: int = 0  # by rounds, the free prefill token excluded
    drafted: int = 0
    looked_at: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    reached: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    accepted_lengths: list[int] = field(default_factory=list)
    rounds_by_chain_len: list[int] = field(default_factory=list)
    offered_at_rank: list[int] = field(default_factory=list)
    accepted_at_rank: list[int] = field(default_factory=list)
    rounds_by_shape: Counter[str] = field(default_factory=Counter)

    @classmethod
    def total(cls, parts: Iterable["Stats"]) -> "Stats":
        """Return the sum of several generations, at least one. Its chain length is the longest: a
        request for one token drafts nothing."""
        every = list(parts)
        counts = {name: _sum([getattr(part, name) for part in every]) for name in COUNTS}
        longest = max(every, key=lambda part: _length(part.chain_len))
        return cls(chain_len=longest.chain_len, tree=longest.tree, **counts)

    def add_round(
        self,
        drafted: int,
        accepted: int,
        emitted: int,
        ranks: Sequence[int] = (),
        offered_ranks: Sequence[int] = (),
    ) -> None:
        """Count a verify forward that accepted `accepted` of `drafted` drafts and emitted `emitted`
        tokens up to the text's end. For a tree, `ranks` and `offered_ranks` are an `Outcome`'s."""
        accepted = min(accepted, emitted)
        self.rounds += 1
        self.drafted += drafted
        self.emitted += emitted
        depth = min(drafted, emitted)
        if offered_ranks:
            depth = sum(drafts != 0 for drafts in offered_ranks[:emitted][: accepted + 1])
            self._add_ranks(ranks[1 : accepted + 1], offered_ranks[:depth])
        self.looked_at += sum(map(int.bit_count, offered_ranks[:depth])) if offered_ranks else depth
        while len(self.reached) < depth:
            self.reached.append(0)
            self.accepted_at.append(0)
        for i in range(depth):
            self.reached[i] += 1
            self.accepted_at[i] += i < accepted
        self.accepted_lengths += [0] * (drafted + 1 - len(self.accepted_lengths))
        self.accepted_lengths[accepted] += 1
        self.rounds_by_chain_len += [0] * (drafted + 1 - len(self.rounds_by_chain_len))
        self.rounds_by_chain_len[drafted] += 1

    def _add_ranks(self, ranks: Sequence[int], offered_ranks: Sequence[int]) -> None:
        for counts in (self.offered_at_rank, self.accepted_at_rank):
            counts += [0] * (max(offered_ranks, default=0).bit_length() - len(counts))
        for drafts in offered_ranks:
            for rank in range(drafts.bit_length()):
                self.offered_at_rank[rank] += drafts >> rank & 1
        for rank in ranks:
            self.accepted_at_rank[rank] += 1

    @property
    def accepted(self) -> int:
        """Drafts that became output."""
        return sum(self.accepted_at)

    @property
    def target_forwards(self) -> int:
        """Forwards of the target model, prompt included."""
        return self.rounds + self.prefill_chunks

    @property
    def tau(self) -> float | None:
        """Tokens emitted per verify round; None before the first one."""
        return self.emitted / self.rounds if self.rounds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over offered drafts; None before the first one."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Accepted over reached, per position of the chain."""
        return [a / r for a, r in zip(self.accepted_at, self.reached, strict=True)]

    @property
    def absolute_acceptance_by_position(self) -> list[float]:
        """Accepted over rounds, per position of the chain."""
        return [a / self.rounds for a in self.accepted_at]

    @property
    def acceptance_by_rank(self) -> list[float]:
        """Accepted over looked at, per rank among siblings; empty for chains."""
        pairs = zip(self.accepted_at_rank, self.offered_at_rank, strict=True)
        return [accepted / offered if offered else 0.0 for accepted, offered in pairs]

    @property
    def tokens_per_second(self) -> float | None:
        """The speed of decoding, without prompts; None when no round ran."""
        return self.emitted / self.decode_seconds if self.rounds else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures that `docs/statistics.md` defines."""
        figures = {name: getattr(self, name) for name in FIGURES}
        tree = None if self.tree is None else str(self.tree)
        return figures | {"rounds_by_shape": dict(self.rounds_by_shape), "tree": tree}


FIGURES = (
    "rounds", "target_forwards", "drafted", "looked_at", "accepted", "tau", "acceptance_rate",
    "acceptance_by_position", "absolute_acceptance_by_position", "accepted_lengths",
    "prefill_seconds", "decode_seconds", "tokens_per_second", "chain_len", "rounds_by_chain_len",
    "rounds_by_shape", "tree", "acceptance_by_rank",
)  # fmt: skip
"""The names in `Stats.to_json`, in its order."""

COUNTS = [name for name in Stats.__dataclass_fields__ if name not in {"chain_len", "tree"}]
"""Fields that are summed over generations."""


def _length(chain_len: ChainLen) -> float:
    """Return a chain length as a number; "auto" is the longest."""
    return math.inf if chain_len == AUTO else chain_len


def _sum(values: list[Any]) -> Any:
    """Return the sum of numbers, of counters, or of lists element by element."""
    if isinstance(values[0], Counter):
        return sum(values, Counter())
    if isinstance(values[0], list):
        return [sum(column) for column in zip_longest(*values, fillvalue=0)]
    return sum(values)
