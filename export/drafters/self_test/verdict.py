"""The finding of a self-test, and the ranking of readings that it stands on."""

from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console

from eagle_aot.common.self_test import CHAIN_LEN, MAX_NEW_TOKENS
from eagle_aot.export.drafters.self_test.comparison import (
    beats_commonest,
    commonest,
    is_better,
    log_gain,
    reads_features,
)
from eagle_aot.export.drafters.self_test.report import show_ranking
from eagle_aot.export.drafters.self_test.score import Score
from eagle_aot.export.drafters.verdict import Finding, Verdict

NO_MATCH = "head and target do not belong together"


class Reading(Protocol):
    """A way in which a drafter's files might be meant. `remedy` says how to make it the chosen
    one."""

    @property
    def name(self) -> str: ...

    @property
    def remedy(self) -> str | None: ...


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
class Ranking(Verdict):
    """`entries` come best first; `chosen` is the one of them that the export takes."""

    entries: tuple[Entry, ...]
    chosen: Entry

    def readings(self) -> list[dict[str, Any]]:
        """The entries, best first."""
        return [entry_to_json(entry, self.chosen) for entry in self.entries]

    def show(self, console: Console) -> None:
        """A table of the entries, and what its columns mean."""
        show_ranking(self, console)


def how_measured(chosen: Score, prompts: int) -> dict[str, Any]:
    """On what a finding stands, as a manifest tells it."""
    return {
        "prompts": prompts,
        "positions": len(chosen.labels),
        "chain_len": CHAIN_LEN,
        "max_new_tokens": MAX_NEW_TOKENS,
    }


def judge(chosen: Entry, others: list[Entry], details: dict[str, Any]) -> Ranking:
    """Of the chosen reading, whose score `is_enough`, and all others. The controls are those of
    `chosen` and of every reading that `is_better`."""
    ranked = sorted([chosen, *others], key=lambda e: -log_gain(chosen.score, e.score).value)
    kind, message = _finding(chosen, others)
    return Ranking(
        kind=kind, message=message, entries=tuple(ranked), chosen=chosen, details=details
    )


def _finding(chosen: Entry, others: list[Entry]) -> tuple[Finding, str]:
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


def entry_to_json(entry: Entry, chosen: Entry) -> dict[str, Any]:
    """One line of the ranking; `chosen` is what it is compared with."""
    rounds = entry.score.rounds
    gain = None if entry is chosen else log_gain(chosen.score, entry.score)
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
