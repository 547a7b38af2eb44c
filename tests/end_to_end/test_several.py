"""Several drafters in one `.pte`: whoever drafts, a text is that of plain decoding."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eagle_aot.artifact import Manifest, drafters_of
from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.adaptive.costs import measure
from eagle_aot.runtime_runner.adaptive.drafters import DrafterChooser
from eagle_aot.runtime_runner.checks.integrity import check_integrity, report
from eagle_aot.runtime_runner.cli import Options, main
from eagle_aot.runtime_runner.results.result import Result
from support.golden_cases import golden_case
from support.runner.even_clock import set_even_clock

_, CASE = golden_case("dflash/qwen3_full")
PROMPT, TEXT = CASE["input.tokens"].tolist(), CASE["expected.text"].tolist()
NAMES = "eagle3", "dflash", "quick"
SAMPLED = {"temperature": 1.0, "seed": 7, "top_k": 50}
CHAIN, TREE = {"chain_len": 5}, {"tree": (4, 3, 12)}
ROOM = 16


@pytest.fixture(scope="module")
def runners(several_artifact: Path) -> dict[str, Runner]:
    """By `--drafter`."""
    names = *NAMES, "ngram", "auto"
    return {name: load_artifact(several_artifact, drafter=name) for name in names}


RNG = random.Random(3)
TEXTS = [PROMPT, *([RNG.randrange(3, 300) for _ in range(length)] for length in (70, 2))]
"""Cut in other ways; the DFlash head was trained on the first."""


@pytest.fixture(scope="module")
def plain(runners: dict[str, Runner]) -> dict[bool, list[list[int]]]:
    """What follows each, sampled and not, without drafts."""
    runner = runners["eagle3"]

    def decoded(**sampling: Any) -> list[list[int]]:
        found = (runner.generate(text, ROOM, speculate=False, **sampling) for text in TEXTS)
        return [one.token_ids for one in found]

    return {False: decoded(), True: decoded(**SAMPLED)}


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("name", [*NAMES, "ngram", "auto"])
def test_no_drafter_changes_a_token(
    name: str, sampled: bool, runners: dict[str, Runner], plain: dict[bool, list[list[int]]]
) -> None:
    runner, sampling = runners[name], SAMPLED if sampled else {}
    who = (*NAMES, "ngram") if name == "auto" else (name,)
    shapes = [CHAIN, CHAIN if name == "ngram" else TREE]
    for text, expected, shape in zip(TEXTS, plain[sampled], [*shapes, CHAIN], strict=True):
        found = runner.generate(text, ROOM, **shape, **sampling)
        assert found.token_ids == expected
        assert found.stats.drafted and found.drafter in who
    for shape in shapes:
        together = runner.generate_many(TEXTS[:2], max_new_tokens=ROOM, **shape, **sampling)
        for one, expected in zip(list(together), plain[sampled], strict=False):
            assert isinstance(one, Result) and one.token_ids == expected


def test_each_has_a_chain_length_of_its_own(runners: dict[str, Runner]) -> None:
    found = {name: runners[name].generate(PROMPT, 8).stats.chain_len for name in NAMES}
    assert found == {"eagle3": 4, "dflash": 5, "quick": 4}


def test_auto_finds_who_drafts_best(
    several_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_even_clock(monkeypatch)
    runner = load_artifact(several_artifact, drafter="auto")
    longest = len(TEXT) - len(PROMPT)
    found = [runner.generate(PROMPT, longest, **CHAIN) for _ in range(9)]
    assert {one.drafter for one in found[:8]} == {*NAMES, "ngram"}
    assert found[-1].drafter == "dflash" and found[-1].stats.accepted > 0
    assert all(one.token_ids == TEXT[len(PROMPT) :] for one in found)


def test_each_drafts_as_many_as_pay_where_nobody_says(
    several_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SECONDS": 0.0, "FEWEST": 1, "LONG": 1, "WARM": 1}.items():
        monkeypatch.setattr(measure, name, value)  # what is measured is not what is tested
    runner = load_artifact(several_artifact, drafter="auto")
    found = [runner.generate(PROMPT, 40) for _ in range(4)]
    assert all(one.stats.chain_len == "auto" for one in found)
    assert all(one.token_ids == TEXT[len(PROMPT) :] for one in found)
    assert len({one.drafter for one in found}) > 1
    monkeypatch.setattr(DrafterChooser, "choose", lambda chooser, places: "ngram")
    for tree in (TREE["tree"], "auto"):  # it knows one way on: a chain as deep
        found = [runner.generate(PROMPT, 40, tree=tree)]
        assert found[0].drafter == "ngram" and found[0].token_ids == TEXT[len(PROMPT) :]
    texts = [PROMPT, TEXT[: len(PROMPT) + 9]]
    for text, one in zip(texts, runner.generate_many(texts, max_new_tokens=20), strict=True):
        assert isinstance(one, Result) and one.token_ids == TEXT[len(text) :][:20]


def test_a_conversation_goes_on_with_its_drafter(
    several_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_even_clock(monkeypatch)
    runner = load_artifact(several_artifact, drafter="auto")
    text, names = list(TEXT[:40]), set()
    for _ in range(8):  # as many as it takes to know who is the fastest
        runner.generate(PROMPT, 40, **CHAIN)
    for _ in range(4):
        found = runner.generate(text, 24, **CHAIN, reuse=True)
        names.add(found.drafter)
        text += [*found.token_ids[:20], 5]
    assert found.token_ids == runner.generate(text[:-21], 24, speculate=False).token_ids
    assert found.cached_tokens > 40 and len(names) == 1


@pytest.mark.parametrize(("name", "kept"), [("dflash", 0), ("ngram", len(PROMPT) + ROOM - 3)])
def test_as_many_drafts_are_right_behind_a_plain_text_as_behind_none(
    name: str, kept: int, runners: dict[str, Runner]
) -> None:
    """A head runs again what it was not shown; prompt lookup knows the tokens."""
    runner, text = runners[name], TEXT[: len(PROMPT) + ROOM - 2]
    runner.engine.sequences.forget()
    runner.generate(PROMPT, ROOM, speculate=False)
    behind = runner.generate(text, ROOM, **CHAIN, reuse=True)
    fresh = runner.generate(text, ROOM, **CHAIN)
    assert behind.token_ids == fresh.token_ids == TEXT[len(text) :][:ROOM]
    assert behind.stats.accepted_lengths == fresh.stats.accepted_lengths
    assert (behind.cached_tokens, fresh.stats.accepted > 0) == (kept, True)


def test_the_command_line_names_one(several_artifact: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"token_ids": PROMPT}) + "\n")
    asked = [str(several_artifact), "--prompts-jsonl", str(prompts), "--max-new-tokens", "8"]
    told = CliRunner().invoke(main, [*asked, "--json", "--drafter", "quick"])
    result, summary = map(json.loads, told.stdout.splitlines())
    assert (result["drafter"], summary["summary"]["drafters"]) == ("quick", {"quick": 1})
    refused = CliRunner().invoke(main, [*asked, "--drafter", "gemma4-assistant"])
    assert refused.exit_code == 1 and refused.stderr.count("\n") == 1
    assert "has eagle3, dflash, quick, and ngram needs nothing of it" in refused.stderr
    with pytest.raises(SettingError, match="has eagle3, dflash, quick"):
        load_artifact(several_artifact, drafter="p-eagle")


def test_a_self_test_is_of_each(
    runners: dict[str, Runner],
    several_artifact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Options, "load", lambda options: runners[options.drafter])
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"token_ids": PROMPT}) + "\n")
    asked = [str(several_artifact), "--self-test", "--prompts-jsonl", str(prompts), "--json"]
    found = json.loads(CliRunner().invoke(main, asked).stdout)["drafters"]
    assert [*found] == [*NAMES]
    assert all(one["prompts"] == one["identical"] == 1 for one in found.values())
    accepted = {name: one["stats"]["accepted"] for name, one in found.items()}
    assert max(accepted, key=accepted.__getitem__) == "dflash"


def test_the_artifact_says_what_it_holds(several_artifact: Path) -> None:
    manifest = Manifest.read(several_artifact)
    assert manifest.methods == [
        "prefill", "target_verify", "eagle3_draft_decode", "dflash_dflash_context",
        "dflash_dflash_block", "quick_peagle_decode", "copy_rows",
    ]  # fmt: skip
    assert drafters_of(manifest) == NAMES and manifest.drafters is not None
    told = [(one.kind, one.first_feature, one.features) for one in manifest.drafters]
    assert told == [("eagle3", 0, 64), ("dflash", 64, 64), ("p-eagle", 128, 64)]
    assert manifest.drafters[1].facts["head"]["block_size"] == 6
    assert all(one.draft.files for one in manifest.drafters)
    lines = "\n".join(report(check_integrity(several_artifact)))
    assert "eagle3, dflash, quick" in lines and "block_size" in lines
