"""`eagle-run --self-test`: does the artifact draft as its export found, and stay lossless?

Only compiled methods are here, so there is one reading of the head to measure: what was compiled.
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
from eagle_aot.runtime_runner.results.stats import Stats
from eagle_aot.runtime_runner.runner import Runner

STANDARD_ERRORS = 3.0
"""What a difference of two shares must exceed to count."""
FEWEST_DRAFTS = 64
"""Below it a share has no standard error to go by: a few right drafts would pass for sure ones."""
LARGEST = 10**9
"""Count of drafts in a record that can be meant."""
WARNINGS = ("other reading", "chance")
"""Verdicts of an export that it warned of."""
Kind = Literal["fits", "differs", "chance", "below", "warned", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """`message` is one line; `differing` counts prompts, from 1, whose tokens speculation changed;
    `recorded` is what the export found, None where it did not look."""

    kind: Kind
    message: str
    prompts: int
    differing: tuple[int, ...]
    stats: Stats | None
    recorded: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """One object."""
        return {
            "verdict": self.kind,
            "message": self.message,
            "prompts": self.prompts,
            "identical": self.prompts - len(self.differing),
            "stats": None if self.stats is None else self.stats.to_json(),
            "recorded": self.recorded,
        }

    def raise_warning(self) -> None:
        """Raise ArtifactError for changed tokens, PairingError for drafts that are worth less."""
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
    for place, ids in fitting(runner, prompts):
        (found,) = compare(runner, ids, [CHAIN_LEN], MAX_NEW_TOKENS)
        parts.append(found.stats)
        tokens += found.plain[1:]  # the first one is no draft's to predict
        if not found.identical:
            differing.append(place)
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
    """Their places, from 1, and ids, where the context has room for two tokens more."""
    for place, prompt in enumerate(prompts, start=1):
        ids = runner.encode(prompt)
        if len(ids) + 1 < runner.constants.max_seq_len:
            yield place, ids


def is_same_test(recorded: Mapping[str, Any], prompts: Sequence[Prompt]) -> bool:
    """Whether the export drafted the same text with the same chains."""
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
    """What was found, worst first. What drafts without a head cannot be wired wrongly."""
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
    found = recorded and chosen_counts(recorded)
    if not found:
        right = stats.accepted / sum(stats.reached)
        return "unknown", (
            f"{right:.0%} of {sum(stats.reached)} drafts were right; the export measured none of "
            "these prompts to compare with"
        )
    return compared(stats, *found)


def compared(stats: Stats, accepted: int, reached: int) -> tuple[Kind, str]:
    """Of all drafts that were looked at, against those of the export."""
    ours, count = stats.accepted / sum(stats.reached), sum(stats.reached)
    theirs = accepted / reached
    both = (stats.accepted + accepted) / (count + reached)
    error = (spread(both, count) ** 2 + spread(both, reached) ** 2) ** 0.5
    line = f"{ours:.0%} of {count} drafts were right, at the export {theirs:.0%} of {reached}"
    if theirs - ours > STANDARD_ERRORS * error:
        return "below", f"{line}: the program does not draft as the pair did, export again"
    return "fits", line


def spread(share: float, count: int) -> float:
    """The standard error of a share."""
    return float((share * (1 - share) / count) ** 0.5)


def chosen_counts(recorded: Mapping[str, Any]) -> tuple[int, int] | None:
    """Drafts that the chosen reading had accepted and reached; None where none are recorded."""
    for row in rows_of(recorded):
        if row.get("chosen") is True:
            counts = [row.get("accepted"), row.get("reached")]
            if all(isinstance(c, list) and all(map(is_count, c)) for c in counts):
                accepted, reached = (sum(c) for c in counts if c)
                return (accepted, reached) if 0 <= accepted <= reached and reached else None
    return None


def is_count(value: object) -> bool:
    """Whether a record can mean it as a count."""
    return type(value) is int and 0 <= value <= LARGEST


def rows_of(recorded: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The recorded ranking."""
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
    """The artifact, then the recorded ranking, best first."""
    shown = Table(box=None, pad_edge=False, collapse_padding=True)
    for header in ("reading", "nats", "tau", "acceptance"):
        shown.add_column(header, justify="left" if header == "reading" else "right", no_wrap=True)
    assert finding.stats is not None
    ours = by_position(finding.stats.acceptance_by_position)
    shown.add_row("this artifact", "", number(finding.stats.tau, 2), ours, style="bold")
    for row in rows_of(finding.recorded or {}):
        shares = row.get("acceptance_by_position")
        listed = shares if isinstance(shares, list) else []
        name = Text(printable(f"at the export: {row.get('name')}"))  # and no markup of rich's
        nats, tau = number(row.get("nats"), 3), number(row.get("tau"), 2)
        shown.add_row(name, nats, tau, by_position(listed))
    return shown
