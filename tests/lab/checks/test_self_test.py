"""`eagle-check --self-test`: verdicts on drafts, and on outputs that they changed."""

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from msgspec import structs
from rich.console import Console

from eagle_aot.artifact import Manifest
from eagle_aot.common.errors import ArtifactError, EagleError, PairingError
from eagle_aot.common.self_test import CHAIN_LEN, MAX_NEW_TOKENS, PROMPTS, identity
from eagle_aot.lab.checks.cli import main
from eagle_aot.lab.checks.self_test import Finding, judge, self_test, show, table
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.stats import Stats

TOKENS = list(range(100))  # none more common than another


def drafts(reached: Sequence[int], accepted: Sequence[int]) -> Stats:
    return Stats(chain_len=4, rounds=reached[0], reached=list(reached), accepted_at=list(accepted))


def record(reached: Sequence[int], accepted: Sequence[int]) -> dict[str, Any]:
    """As an export leaves it, of the built-in prompts."""
    row = {"name": "as resolved", "chosen": True, "reached": [*reached], "accepted": [*accepted]}
    return {
        "verdict": "fits",
        "message": "well",
        "prompts_sha256": identity(PROMPTS),
        "chain_len": CHAIN_LEN,
        "max_new_tokens": MAX_NEW_TOKENS,
        "readings": [row],
    }


@pytest.mark.parametrize(("stats", "tokens", "differing", "recorded", "kind"), [
    (drafts([100, 80], [80, 60]), TOKENS, [], record([100, 80], [82, 61]), "fits"),
    (drafts([100, 60], [60, 30]), TOKENS, [], record([100, 80], [85, 70]), "below"),
    (drafts([100, 60], [60, 30]), TOKENS, [], None, "unknown"),
    (drafts([100, 60], [60, 30]), TOKENS, [], {"readings": [{"chosen": True}]}, "unknown"),
    (drafts([100, 4], [4, 1]), TOKENS, [], record([100, 80], [82, 61]), "chance"),
    (drafts([100, 50], [50, 10]), [7] * 45 + TOKENS[:55], [], None, "chance"),
    (drafts([100, 80], [80, 60]), TOKENS, [2, 9], record([100, 80], [82, 61]), "differs"),
    (None, [], [], None, "unknown"),
    (drafts([1], [1]), [7, 8], [], record([100, 80], [82, 61]), "unknown"),
    (drafts([40, 23], [36, 20]), TOKENS, [], record([100, 80], [82, 61]), "unknown"),
    (drafts([40, 24], [36, 20]), TOKENS, [], record([100, 80], [82, 61]), "fits"),
    (drafts([1], [1]), [7, 8], [1], None, "differs"),
    (drafts([100, 80], [80, 60]), TOKENS, [], record([10**400], [10**399]), "unknown"),
])  # fmt: skip
def test_the_verdict_is_the_worst_finding(
    stats: Stats | None, tokens: list[int], differing: list[int], recorded: Any, kind: str
) -> None:
    assert judge(stats, tokens, differing, recorded)[0] == kind


@pytest.mark.parametrize(("stats", "differing", "kind"), [
    (drafts([100, 4], [4, 1]), [], "fits"),
    (drafts([3], [0]), [], "fits"),
    (drafts([100, 4], [4, 1]), [3], "differs"),
    (None, [], "unknown"),
])  # fmt: skip
def test_without_a_head_only_outputs_are_judged(
    stats: Stats | None, differing: list[int], kind: str
) -> None:
    assert judge(stats, TOKENS, differing, None, has_head=False)[0] == kind


def test_the_shipped_pair_drafts_as_its_export_found(tiny: Runner, tiny_artifact: Path) -> None:
    found = self_test(tiny, Manifest.read(tiny_artifact), PROMPTS)
    assert found.kind == "fits" and not found.differing and found.prompts == len(PROMPTS)
    assert found.recorded and found.stats
    (chosen,) = (row for row in found.recorded["readings"] if row["chosen"])
    # The export decoded the same text eagerly: but for a tie the rounds are the very same.
    assert found.stats.tau == pytest.approx(chosen["tau"], abs=0.1)
    assert found.stats.reached == pytest.approx(chosen["reached"], abs=4)
    assert found.stats.accepted_at == pytest.approx(chosen["accepted"], abs=4)
    found.raise_warning()


def test_a_changed_token_is_a_failure(tiny: Runner, tiny_artifact: Path) -> None:
    class Flipping:
        """Changes a token of the second output that has drafts."""

        constants, calls = tiny.constants, 0

        def encode(self, prompt: Any) -> list[int]:
            return tiny.encode(prompt)

        def generate(
            self, prompt: Any, length: int, chain_len: Any = None, speculate: bool = True
        ) -> Any:
            result = tiny.generate(prompt, length, chain_len, speculate=speculate)
            self.calls += speculate
            changed = [*result.token_ids[:-1], 9]
            return replace(result, token_ids=changed) if speculate and self.calls == 2 else result

    too_long = [2] * tiny.constants.max_seq_len
    prompts: list[str | list[int]] = [too_long, *PROMPTS[:3]]
    found = self_test(cast(Runner, Flipping()), Manifest.read(tiny_artifact), prompts)
    assert (found.prompts, found.differing) == (3, (3,))  # as they stand in the file
    with pytest.raises(ArtifactError, match="changed the output of prompt 3: export again"):
        found.raise_warning()


def test_a_warning_of_the_export_is_repeated(tiny: Runner, tiny_artifact: Path) -> None:
    manifest = Manifest.read(tiny_artifact)
    warned = {"verdict": "other reading", "message": "taps 2,4,5 (--tap-layers 2,4,5)"}
    assert manifest.self_test
    recorded = structs.replace(manifest, self_test={**manifest.self_test, **warned})
    found = self_test(tiny, recorded, PROMPTS)
    with pytest.raises(PairingError, match="the export found: taps 2,4,5"):
        found.raise_warning()


def test_the_command_prints_one_object_or_a_table(tiny_artifact: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPTS[0]}) + "\n")
    arguments = [str(tiny_artifact), "--self-test", "--self-test-prompts", str(prompts)]
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    assert (found["prompts"], found["identical"], found["verdict"]) == (1, 1, "unknown")
    assert found["recorded"]["verdict"] == "fits"
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0
    assert "at the export: as resolved" in shown.output and "1 of 1 outputs" in shown.output


def test_a_manifest_cannot_write_to_a_terminal() -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J[/red]\n"
    row = {"name": hostile, "nats": 10**400, "tau": hostile, "acceptance_by_position": [hostile]}
    recorded = {"message": hostile, "readings": [row]}
    stats = drafts([100, 80], [80, 60])
    finding = Finding(
        kind="fits", message="well", prompts=1, differing=(), stats=stats, recorded=recorded
    )
    output = StringIO()
    show(finding, Console(file=output, force_terminal=True, color_system=None, width=100))
    assert all(c.isprintable() or c == "\n" for c in output.getvalue().replace("\x1b[0m", ""))
    assert "\ufffd]0;owned\ufffd\ufffd[2J[/red]" in output.getvalue()


def test_drafts_that_were_not_reached_are_dashes() -> None:
    stats = drafts([100, 80], [80, 60])
    row = {"name": "as resolved", "acceptance_by_position": [0.5]}
    finding = Finding(
        kind="fits", message="", prompts=1, differing=(), stats=stats, recorded={"readings": [row]}
    )
    output = StringIO()
    Console(file=output, width=100).print(table(finding))
    _, ours, theirs = output.getvalue().splitlines()
    assert ours.split()[-4:] == ["0.80", "0.75", "-", "-"]
    assert theirs.split()[-4:] == ["0.50", "-", "-", "-"]
    assert ours.index("0.80") == theirs.index("0.50")


@pytest.mark.parametrize("option", ["--drafter", "--tree"])
def test_option_that_the_self_test_does_not_use_is_refused(option: str) -> None:
    result = CliRunner().invoke(main, ["a", "--self-test", option, "ngram"])
    assert result.exit_code == 2 and f"--self-test: leave out {option}" in result.stderr


def test_every_warning_raises_an_eagle_error(tiny: Runner, tiny_artifact: Path) -> None:
    found = self_test(tiny, Manifest.read(tiny_artifact), PROMPTS[:1])
    for kind in ("differs", "chance", "below", "warned"):
        with pytest.raises(EagleError):
            replace(found, kind=cast(Any, kind)).raise_warning()
