"""What a self-test found, in words and as the manifest records it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Console

from eagle_aot.common.text import one_line

Finding = Literal["fits", "other reading", "chance", "unknown"]

RANDOM = "its weights are random"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`message` is one line; `details` say on what it was found."""

    kind: Finding
    message: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def is_warning(self) -> bool:
        """Whether something should be done about the pair."""
        return self.kind in ("other reading", "chance")

    def readings(self) -> list[dict[str, Any]]:
        """What was measured for each way in which the drafter's files could be meant."""
        return []

    def to_json(self) -> dict[str, Any]:
        """The manifest's `self_test`."""
        found = {"verdict": self.kind, "message": self.message}
        return {**found, **self.details, "readings": self.readings()}

    def show(self, console: Console) -> None:
        """What was measured, for a reader."""


def unknown(reason: str) -> Verdict:
    """Nothing could be measured."""
    return Verdict(kind="unknown", message=f"not known whether the head reads the target: {reason}")


def announce(verdict: Verdict, console: Console) -> None:
    """The finding in one line, which is loud where something should be done."""
    style, word = ("bold red", "WARNING: ") if verdict.is_warning else (None, "")
    line = one_line(f"{word}self-test: {verdict.message}")
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
