"""What a self-test found, in words and as the manifest records it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from eagle_aot.export.drafters.eagle3.self_test.comparison import (
    beats_commonest,
    commonest,
    is_better,
    log_gain,
    reads_features,
)
from eagle_aot.export.drafters.eagle3.self_test.reading import Reading
from eagle_aot.export.drafters.eagle3.self_test.score import Score

Kind = Literal["fits", "other reading", "chance", "unknown"]

RANDOM = "its weights are random"
NO_MATCH = "head and target do not belong together"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A reading, how it drafted, and how its control did where one was needed."""

    reading: Reading
    score: Score
    control: Score | None = None

    @property
    def why_chance(self) -> str | None:
        """Why its drafts are worth nothing; None where they are worth something."""
        if not beats_commonest(self.score):
            share = commonest(self.score)[1]
            return f"the commonest token alone is right {share:.0%} of the time, drafts no oftener"
        if self.control is not None and not reads_features(self.score, self.control):
            return "hidden states of other positions draft as well as the right ones"
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`message` is one line; `entries` come best first, `details` say on what they were drafted."""

    kind: Kind
    message: str
    entries: tuple[Entry, ...] = ()
    chosen: Entry | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def is_warning(self) -> bool:
        """Whether something should be done about the pair."""
        return self.kind in ("other reading", "chance")

    def to_json(self) -> dict[str, Any]:
        """The manifest's `self_test`. The readings come best first."""
        rows = [entry_to_json(entry, self.chosen) for entry in self.entries if self.chosen]
        return {"verdict": self.kind, "message": self.message, **self.details, "readings": rows}


def unknown(reason: str) -> Verdict:
    """Nothing could be measured."""
    return Verdict(kind="unknown", message=f"not known whether the head reads the target: {reason}")


def judge(chosen: Entry, others: list[Entry], details: dict[str, Any]) -> Verdict:
    """Of the chosen reading, whose score `is_enough`, and all others. The controls are those of
    `chosen` and of every reading that `is_better`."""
    ranked = sorted([chosen, *others], key=lambda e: -log_gain(chosen.score, e.score).value)
    kind, message = _finding(chosen, others)
    return Verdict(
        kind=kind, message=message, entries=tuple(ranked), chosen=chosen, details=details
    )


def _finding(chosen: Entry, others: list[Entry]) -> tuple[Kind, str]:
    better = [entry for entry in others if is_better(chosen.score, entry.score)]
    sound = [entry for entry in better if entry.why_chance is None]
    if sound:
        best = max(sound, key=lambda entry: log_gain(chosen.score, entry.score).value)
        return "other reading", f"another reading of the head drafts clearly better: {_named(best)}"
    if chosen.why_chance:
        return "chance", f"{NO_MATCH}: {chosen.why_chance}"
    return "fits", "no other reading of the head is clearly better than the chosen one"


def _named(entry: Entry) -> str:
    return f"{entry.reading.name} ({entry.reading.remedy})"


def entry_to_json(entry: Entry, chosen: Entry | None) -> dict[str, Any]:
    """One line of the ranking; `chosen` is what it is compared with."""
    rounds = entry.score.rounds
    gain = None if chosen in (None, entry) else log_gain(chosen.score, entry.score)
    return {
        "name": entry.reading.name,
        "chosen": entry is chosen,
        "remedy": entry.reading.remedy,
        "nats": entry.score.mean_nats,
        "tau": rounds.tau,
        "reached": list(rounds.reached),
        "accepted": list(rounds.accepted),
        "acceptance_by_position": rounds.acceptance_by_position,
        "log_gain": None if gain is None else {"mean": gain.value, "standard_error": gain.error},
    }
