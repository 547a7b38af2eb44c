"""`eagle-check --self-test`: does an artifact draft as its export found, and is it lossless?

An artifact holds compiled methods only, so there is one reading of the head to measure.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eagle_aot.artifact import DRAFTERS, Manifest
from eagle_aot.common.errors import ArtifactError, EagleError, PairingError
from eagle_aot.common.prompts import Prompt
from eagle_aot.common.self_test import CHAIN_LEN, MAX_NEW_TOKENS, by_position, identity, number
from eagle_aot.common.text import one_line, printable
from eagle_aot.lab.checks.lossless import compare
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.runner import Runner

STANDARD_ERRORS = 3.0
"""How many standard errors two shares must differ by to count as different."""
FEWEST_DRAFTS = 64
"""With fewer drafts a share's standard error means nothing."""
LARGEST = 10**9
"""The largest count of drafts in a record that is believed."""
WARNINGS = ("other reading", "chance")
"""Verdicts of an export that come with a warning."""
Kind = Literal["fits", "differs", "chance", "below", "warned", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of a self-test.

    `message` is one line. `differing` lists the prompts, from 1, whose tokens speculation changed.
    `recorded` is the export's own self-test, None where it ran none.
    """

    kind: Kind
    message: str
    prompts: int
    differing: tuple[int, ...]
    stats: Stats | None
    recorded: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """Return all of it as one object."""
        return {
            "verdict": self.kind,
            "message": self.message,
            "prompts": self.prompts,
            "identical": self.prompts - len(self.differing),
            "stats": None if self.stats is None else self.stats.to_json(),
            "recorded": self.recorded,
        }

    def raise_warning(self) -> None:
        """Raise ArtifactError for changed tokens, PairingError for drafts that are worse."""
        errors: dict[str, type[EagleError]] = {
            "differs": ArtifactError,
            "chance": PairingError,
            "below": PairingError,
            "warned": PairingError,
        }
        if self.kind in errors:
            raise errors[self.kind](f"self-test: {self.message}")


def self_test(runner: Runner, manifest: Manifest, prompts: Sequence[Prompt]) -> Finding:
    """Decode every prompt that fits the context with and without drafts, and judge the drafts."""
    tokens: list[int] = []
    parts, differing = [], []
    for number_, ids in fitting(runner, prompts):
        (comparison,) = compare(runner, ids, [CHAIN_LEN], MAX_NEW_TOKENS)
        parts.append(comparison.stats)
        tokens += comparison.plain[1:]  # the first one is never drafted
        if not comparison.identical:
            differing.append(number_)
    stats = Stats.total(parts) if parts else None
    recorded = manifest.self_test
    comparable = recorded if recorded and is_same_test(recorded, prompts) else None
    has_head = bool(DRAFTERS[manifest.drafter])
    kind, message = judge(stats, tokens, differing, comparable, has_head=has_head)
    if kind in ("fits", "unknown") and recorded and recorded.get("verdict") in WARNINGS:
        kind, message = "warned", f"the export found: {recorded.get('message')}"
    return Finding(
        kind=kind,
        message=message,
        prompts=len(parts),
        differing=tuple(differing),
        stats=stats,
        recorded=recorded,
    )


def fitting(runner: Runner, prompts: Sequence[Prompt]) -> Iterator[tuple[int, list[int]]]:
    """Yield the numbers, from 1, and ids of prompts that leave room for two tokens more."""
    for number_, prompt in enumerate(prompts, start=1):
        ids = runner.encode(prompt)
        if len(ids) + 1 < runner.constants.max_seq_len:
            yield number_, ids


def is_same_test(recorded: Mapping[str, Any], prompts: Sequence[Prompt]) -> bool:
    """Return whether the export drafted the same text with the same chains."""
    ours = identity(prompts), CHAIN_LEN, MAX_NEW_TOKENS
    names = "prompts_sha256", "chain_len", "max_new_tokens"
    return ours == tuple(recorded.get(name) for name in names)


def judge(
    stats: Stats | None,
    tokens: Sequence[int],
    differing: Sequence[int],
    recorded: Mapping[str, Any] | None,
    *,
    has_head: bool = True,
) -> tuple[Kind, str]:
    """Return the worst that is known. A drafter without a head cannot be wired wrongly."""
    if differing:
        numbers = ", ".join(map(str, differing))
        return "differs", f"speculation changed the output of prompt {numbers}: export again"
    if stats is None or not stats.reached:
        return "unknown", "no prompt has an answer of two tokens within the context"
    if not has_head:
        return "fits", f"{number(stats.tau, 2)} tokens per round, and no head to judge"
    if sum(stats.reached) < FEWEST_DRAFTS:
        return "unknown", f"{sum(stats.reached)} drafts are too few to tell what they are worth"
    commonest = max(Counter(tokens).values()) / len(tokens)
    share, count = stats.acceptance_by_position[0], stats.reached[0]
    if share - commonest <= STANDARD_ERRORS * spread(share, count):
        return "chance", (
            f"first drafts are right {share:.0%} of the time, the commonest token alone "
            f"{commonest:.0%}: head and target do not belong together"
        )
    counts = recorded and chosen_counts(recorded)
    if not counts:
        right = stats.accepted / sum(stats.reached)
        return "unknown", (
            f"{right:.0%} of {sum(stats.reached)} drafts were right; the export measured none of "
            "these prompts to compare with"
        )
    return judge_against_export(stats, accepted=counts[0], reached=counts[1])


def judge_against_export(stats: Stats, *, accepted: int, reached: int) -> tuple[Kind, str]:
    """Compare the share of right drafts with the export's own."""
    ours, count = stats.accepted / sum(stats.reached), sum(stats.reached)
    theirs = accepted / reached
    both = (stats.accepted + accepted) / (count + reached)
    error = (spread(both, count) ** 2 + spread(both, reached) ** 2) ** 0.5
    line = f"{ours:.0%} of {count} drafts were right, at the export {theirs:.0%} of {reached}"
    if theirs - ours > STANDARD_ERRORS * error:
        return "below", f"{line}: the program does not draft as the pair did, export again"
    return "fits", line


def spread(share: float, count: int) -> float:
    """Return the standard error of a share."""
    return float((share * (1 - share) / count) ** 0.5)


def chosen_counts(recorded: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the chosen reading's accepted and reached drafts, None where none are recorded."""
    for row in rows_of(recorded):
        if row.get("chosen") is True:
            counts = [row.get("accepted"), row.get("reached")]
            if all(isinstance(c, list) and all(map(is_count, c)) for c in counts):
                accepted, reached = (sum(c) for c in counts if c)
                return (accepted, reached) if 0 <= accepted <= reached and reached else None
    return None


def is_count(value: object) -> bool:
    """Return whether a recorded value can be a count."""
    return type(value) is int and 0 <= value <= LARGEST


def rows_of(recorded: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of the recorded ranking."""
    readings = recorded.get("readings")
    return [row for row in readings if isinstance(row, dict)] if isinstance(readings, list) else []


def show(finding: Finding, console: Console) -> None:
    """Print drafts as measured, what the export found, and the finding unless it is an error."""
    if finding.stats is not None:
        console.print(table(finding))
    if finding.recorded is not None:
        console.print(
            one_line(f"at the export: {finding.recorded.get('message')}"),
            markup=False,
            soft_wrap=True,
        )
    if finding.kind in ("fits", "unknown"):
        identical = f"{finding.prompts} of {finding.prompts} outputs identical to plain decoding's"
        console.print(f"self-test: {identical}; {finding.message}", markup=False, soft_wrap=True)


def table(finding: Finding) -> Table:
    """Return a table of the artifact, then of the recorded ranking, best first."""
    shown = Table(box=None, pad_edge=False, collapse_padding=True)
    for header in ("reading", "nats", "tau", "acceptance"):
        shown.add_column(header, justify="left" if header == "reading" else "right", no_wrap=True)
    assert finding.stats is not None
    ours = by_position(finding.stats.acceptance_by_position)
    shown.add_row("this artifact", "", number(finding.stats.tau, 2), ours, style="bold")
    for row in rows_of(finding.recorded or {}):
        shares = row.get("acceptance_by_position")
        listed = shares if isinstance(shares, list) else []
        name = Text(printable(f"at the export: {row.get('name')}"))  # without rich's markup
        nats, tau = number(row.get("nats"), 3), number(row.get("tau"), 2)
        shown.add_row(name, nats, tau, by_position(listed))
    return shown
