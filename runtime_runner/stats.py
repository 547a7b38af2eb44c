"""What a generation cost and what its drafts were worth."""

from dataclasses import dataclass, field


@dataclass(kw_only=True, slots=True)
class Stats:
    """Counts of one generation.

    `reached[i]` and `accepted_at[i]` count the rounds in which draft i was looked at (all before
    it were accepted) and accepted. Drafts behind a stop token count as neither.
    """

    chain_len: int
    prefill_chunks: int = 0
    rounds: int = 0
    emitted: int = 0  # by rounds, the free prefill token excluded
    drafted: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    reached: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def add_round(self, drafted: int, accepted: int, emitted: int) -> None:
        """One verify forward: `drafted` tokens offered, `accepted` of them emitted."""
        self.rounds += 1
        self.drafted += drafted
        self.emitted += emitted
        looked_at = min(drafted, emitted)
        while len(self.reached) < looked_at:
            self.reached.append(0)
            self.accepted_at.append(0)
        for i in range(looked_at):
            self.reached[i] += 1
            self.accepted_at[i] += i < accepted

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
    def acceptance_by_position(self) -> list[float]:
        """Accepted over reached, per position of the chain."""
        return [a / r for a, r in zip(self.accepted_at, self.reached, strict=True)]

    @property
    def tokens_per_second(self) -> float | None:
        """Of decoding alone; None when no round ran."""
        return self.emitted / self.decode_seconds if self.rounds else None
