"""The verdict of a self-test: as a message, as a table, and as a manifest records it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from eagle_aot.common.self_test import CHAIN_LEN, MAX_NEW_TOKENS, by_position
from eagle_aot.common.text import one_line
from eagle_aot.export.self_test.score import Score, is_better, log_gain, score
from eagle_aot.export.self_test.text import Reading, TargetText

Finding = Literal["fits", "other reading", "chance", "unknown"]

RANDOM = "its weights are random"
NO_MATCH = "head and target do not belong together"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A reading and its score; `control` is its score with the features of other positions, if that
    was measured."""

    reading: Reading
    score: Score
    control: Score | None = None

    @property
    def why_chance(self) -> str | None:
        """Why its drafts are no better than chance; None if they are."""
        if not self.score.beats_commonest:
            share = self.score.commonest[1]
            return (
                f"the commonest token alone is right {share:.0%} of the time, drafts no more often"
            )
        if self.control is not None and not log_gain(self.control, self.score).is_clear:
            return "hidden states of other positions draft as well as the right ones"
        return None

    def to_json(self, chosen: "Entry") -> dict[str, Any]:
        """Return the manifest's record of this reading, compared with the `chosen` one."""
        rounds = self.score.rounds
        gain = None if self is chosen else log_gain(chosen.score, self.score)
        return {
            "name": self.reading.name,
            "chosen": self is chosen,
            "remedy": self.reading.remedy,
            "nats": self.score.mean_nats,
            "tau": rounds.tau,
            "reached": list(rounds.reached),
            "accepted": list(rounds.accepted),
            "acceptance_by_position": rounds.acceptance_by_position,
            "log_gain": gain and {"mean": gain.value, "standard_error": gain.error},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The result of a self-test. `details` say what was measured. `entries` are all readings, best
    first, and `chosen` is the export's; none and None if nothing was measured."""

    kind: Finding
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    chosen: Entry | None = None

    @property
    def is_warning(self) -> bool:
        """Whether the user should change something."""
        return self.kind in ("other reading", "chance")

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's `self_test`."""
        readings = [entry.to_json(self.chosen) for entry in self.entries if self.chosen]
        verdict = {"verdict": self.kind, "message": self.message}
        return {**verdict, **self.details, "readings": readings}

    def show(self, console: Console) -> None:
        """Print the entries as a table, and what its columns mean."""
        if self.chosen is None:
            return
        console.print(self.table(self.chosen))
        terms = (
            f"{self.details['prompts']} prompts, {self.details['positions']} positions, chains of "
            f"{CHAIN_LEN}.\nnats: cross entropy of the target's own token. "
            "log ratio: of nats to the\nchosen reading's, with its standard error; "
            "below 0 is better."
        )
        console.print(terms, markup=False, highlight=False)

    def table(self, chosen: Entry) -> Table:
        """Return the entries, best first, in at most 80 columns."""
        table = Table(box=None, pad_edge=False, collapse_padding=True)
        for name in ("reading", "nats", "log ratio", "tau", "acceptance"):
            table.add_column(name, justify="left" if name == "reading" else "right", no_wrap=True)
        for entry in self.entries:
            gain, rounds = log_gain(chosen.score, entry.score), entry.score.rounds
            ratio = "" if entry is chosen else f"{-gain.value:+.2f} ± {gain.error:.2f}"
            nats, tau = f"{entry.score.mean_nats:.3f}", f"{rounds.tau:.2f}"
            cells = entry.reading.name, nats, ratio, tau, by_position(rounds.acceptance_by_position)
            table.add_row(*cells, style="bold" if entry is chosen else None)
        return table

    def announce(self, console: Console) -> None:
        """Print the message in one line, highlighted if it is a warning."""
        style, word = ("bold red", "WARNING: ") if self.is_warning else (None, "")
        line = one_line(f"{word}self-test: {self.message}")
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def unknown(reason: str) -> Verdict:
    """Return the verdict if nothing could be measured."""
    return Verdict(kind="unknown", message=f"not known whether the head reads the target: {reason}")


def rank(readings: Iterable[Reading], texts: Sequence[TargetText], vocab_size: int) -> Verdict:
    """Judge a drafter by how its readings draft texts of a target with `vocab_size` tokens.

    The first reading is the chosen one. Controls are measured for it and for every reading that
    drafts better.
    """
    if not texts:
        return unknown("no prompt has an answer of two tokens within the context")
    first, *others = readings
    chosen_score = score(first, texts, vocab_size)
    if not chosen_score.is_enough:
        return unknown(f"{len(chosen_score.labels)} positions are too few to tell")
    chosen = Entry(
        reading=first, score=chosen_score, control=score(first.control(), texts, vocab_size)
    )
    entries = [chosen]
    for reading in others:
        other, control = score(reading, texts, vocab_size), None
        if is_better(chosen_score, other):
            control = score(reading.control(), texts, vocab_size)
        entries.append(Entry(reading=reading, score=other, control=control))
    entries.sort(key=lambda entry: -log_gain(chosen_score, entry.score).value)
    details = {
        "prompts": len(texts),
        "positions": len(chosen_score.labels),
        "chain_len": CHAIN_LEN,
        "max_new_tokens": MAX_NEW_TOKENS,
    }
    kind, message = _finding(chosen, entries)
    return Verdict(
        kind=kind, message=message, details=details, entries=tuple(entries), chosen=chosen
    )


def _finding(chosen: Entry, entries: list[Entry]) -> tuple[Finding, str]:
    for entry in entries:  # best first
        if is_better(chosen.score, entry.score) and entry.why_chance is None:
            reading = f"{entry.reading.name} ({entry.reading.remedy})"
            return "other reading", f"another reading of the head drafts clearly better: {reading}"
    if chosen.why_chance:
        return "chance", f"{NO_MATCH}: {chosen.why_chance}"
    if len(entries) > 1:
        return "fits", "no other reading of the head is clearly better than the chosen one"
    right = float(chosen.score.hits[:, 0].double().mean())
    share = chosen.score.commonest[1]
    return "fits", (
        f"first drafts are right {right:.0%} of the time, the commonest token alone {share:.0%}"
    )
