"""Gemma's assistant and heads that draft blocks through real `.pte`s: drafts are those of the
reference implementations, and the text is that of plain decoding, however it is drafted. A DFlash
head's methods are a part of a DSpark head's."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.artifact import Manifest
from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.shared_rows import Lines, SharedRows, share_rows
from eagle_aot.runtime_runner.frontend.generation import Result
from support.golden_cases import golden_case

pytestmark = pytest.mark.slow  # each kind is an export of its own

SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 7, "top_k": 50}
TREES = [(1, 16, 16), (3, 3, 9), (15, 2, 30), (6, 8, 32), "auto"]
DRAFTS: list[dict[str, Any]] = [
    *({"chain_len": length} for length in (1, 4, 15, "auto")),
    *({"tree": tree} for tree in TREES),
]


@dataclass(frozen=True)
class Kind:
    """A drafter, its golden case, and shapes with which some drafts are accepted."""

    name: str
    runner: Runner
    case: dict[str, Tensor]
    drafts: list[dict[str, Any]]

    @property
    def prompt(self) -> list[int]:
        return self.case["input.tokens"].tolist()

    @property
    def text(self) -> list[int]:
        """The text of plain decoding, with its prompt."""
        return self.case["expected.text"].tolist()


@pytest.fixture
def assistant(assistant_runner: Runner) -> Kind:
    drafts: list[dict[str, Any]] = [{"chain_len": 4}, {"tree": (6, 8, 32)}]
    _, case = golden_case("mtp/two_layers")
    return Kind("gemma4-assistant", assistant_runner, case, drafts)


@pytest.fixture
def dflash2(dflash2_runner: Runner) -> Kind:
    drafts: list[dict[str, Any]] = [{"chain_len": 7}, {"tree": (7, 4, 24)}]
    _, case = golden_case("dflash2/speculators_window")
    return Kind("dflash2", dflash2_runner, case, drafts)


@pytest.fixture
def dspark(dspark_runner: Runner) -> Kind:
    drafts: list[dict[str, Any]] = [{"chain_len": 7}, {"tree": (7, 4, 24)}]
    _, case = golden_case("dspark/deepspec_anchor")
    return Kind("dspark", dspark_runner, case, drafts)


@pytest.fixture
def kind(fixture: str, request: pytest.FixtureRequest) -> Kind:
    """The kind of a runner; tests of artifacts are found by the names of their runners."""
    found: Kind = request.getfixturevalue(fixture.removesuffix("_runner"))
    return found


kinds = pytest.mark.parametrize("fixture", ["assistant_runner", "dflash2_runner", "dspark_runner"])


@kinds
def test_rounds_are_those_of_the_reference(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all drafts verified, however unlikely."""
    monkeypatch.setattr(kind.runner.drafter, "least_survival", 0.0, raising=False)
    count, accepted = len(kind.text) - len(kind.prompt), kind.case["expected.round_accepted"]
    drafts = kind.case["expected.round_drafts"].shape[1]
    result = kind.runner.generate(kind.prompt, count, chain_len=drafts)
    assert result.token_ids == kind.text[len(kind.prompt) :] and result.drafter == kind.name
    assert result.stats.rounds == len(accepted)
    before = accepted[:-1].bincount(minlength=drafts + 1)
    lengths = torch.tensor(result.stats.accepted_lengths) - before
    assert sorted(lengths.tolist()) == [0] * drafts + [1], "the last one is cut by the text's end"


@kinds
def test_drafts_change_no_token(kind: Kind) -> None:
    """Of prompts of every length that is cut in another way, which the head has not seen."""
    runner, rng = kind.runner, random.Random(3)
    window = runner.constants.sliding_window or 16
    for length, drafts in zip((1, 2, window, window + 1, 64, 65, 100, 130, 7), DRAFTS, strict=True):
        prompt = [rng.randrange(3, 300) for _ in range(length)]
        plain = runner.generate(prompt, 24, speculate=False)
        assert runner.generate(prompt, 24, **drafts).token_ids == plain.token_ids, (length, drafts)


@kinds
def test_drafts_change_no_token_of_sampled_texts_or_batches(kind: Kind) -> None:
    runner, start = kind.runner, len(kind.prompt)
    plain = runner.generate(kind.prompt, 24, speculate=False, **SAMPLED)
    for drafts in kind.drafts:
        found = runner.generate(kind.prompt, 24, **drafts, **SAMPLED)
        assert found.token_ids == plain.token_ids and found.stats.accepted > 0
        texts = [kind.prompt, kind.text[: start + 9], kind.text[: start + 4]]
        for text, result in zip(
            texts, runner.generate_many(texts, max_new_tokens=20, **drafts), strict=True
        ):
            assert isinstance(result, Result)
            assert result.token_ids == kind.text[len(text) :][:20]


def test_texts_of_a_batch_share_rows(dspark: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four, as many as the artifact has sequences, have 16 rows in eight lines."""
    monkeypatch.setattr(Chooser, "choose_for_batch", lambda chooser, options: Shape.chain(3))
    shared = set()

    def spied(lines: Lines, bonus: Tensor, *others: Any) -> SharedRows:
        shared.add((lines.count, lines.rows, len(bonus)))
        return share_rows(lines, bonus, *others)

    monkeypatch.setattr("eagle_aot.runtime_runner.decode.round.share_rows", spied)
    start = len(dspark.prompt)
    texts = [dspark.prompt, *(dspark.text[: start + more] for more in (9, 4, 2))]
    for sampling in ({}, SAMPLED):
        drafts = {"chain_len": "auto", **sampling}
        results = list(dspark.runner.generate_many(texts, max_new_tokens=20, **drafts))
        rounds = [0] * 8
        for text, result in zip(texts, results, strict=True):
            assert isinstance(result, Result)
            plain = dspark.runner.generate(text, 20, speculate=False, **sampling)
            assert result.token_ids == plain.token_ids
            for length, count in enumerate(result.stats.rounds_by_chain_len):
                rounds[length] += count
        assert rounds[1] > 0 and sum(rounds[5:]) > 0
    assert (8, 2, 4) in shared


@kinds
def test_a_text_continues_from_cached_rows(kind: Kind) -> None:
    longer = [*kind.text[: len(kind.prompt) + 16], 5, 6, 7]
    chain, tree = kind.drafts
    plain = kind.runner.generate(longer, 16, speculate=False).token_ids
    kind.runner.generate(kind.prompt, 16, **tree, reuse=True)
    assert kind.runner.generate(longer, 16, **chain, reuse=True).token_ids == plain


@pytest.mark.parametrize(("fixture", "drafter", "reuses"), [
    ("assistant_runner", "gemma4-assistant", True),
    ("assistant_runner", "ngram", True),
    ("dspark_runner", "dspark", False),
])  # fmt: skip
def test_rows_of_a_plain_text_are_reused_if_the_drafter_does_not_observe_them(
    kind: Kind, drafter: str, reuses: bool
) -> None:
    """As many drafts are accepted either way: the head runs again what it has not observed."""
    runner = load_artifact(kind.runner.directory, drafter=drafter)
    text, chain = kind.text[: len(kind.prompt) + 14], kind.drafts[0]
    runner.generate(kind.prompt, 16, speculate=False)
    reused = runner.generate(text, 16, **chain, reuse=True)
    fresh = runner.generate(text, 16, **chain)
    assert reused.token_ids == fresh.token_ids == kind.text[len(text) :][:16]
    assert reused.stats.accepted_lengths == fresh.stats.accepted_lengths
    assert (reused.cached_tokens, reused.drafter) == ((len(text) - 1) * reuses, drafter)
    assert fresh.stats.accepted > 0


def test_the_manifest_describes_an_assistant(assistant_artifact: Path) -> None:
    manifest = Manifest.read(assistant_artifact)
    assert manifest.drafter == "gemma4-assistant"
    assert manifest.methods == ["prefill", "target_verify", "mtp_decode", "copy_rows"]
    assert not [cache for cache in manifest.caches if cache.startswith("draft.")]
    assert manifest.decisions["caches"]["draft_bytes_of_a_sequence"] == 0
    assert manifest.decisions["flags"]["position_offset"]["value"] == 1
    with pytest.raises(SettingError, match=r"'eagle3': .* has no draft_decode"):
        load_artifact(assistant_artifact, drafter="eagle3")


def test_the_manifest_describes_a_dflash2_head(dflash2_artifact: Path) -> None:
    manifest = Manifest.read(dflash2_artifact)
    assert manifest.drafter == "dflash2"
    assert manifest.methods == [
        *("prefill", "target_verify", "dflash_context", "dflash2_block", "dflash2_scores"),
        "copy_rows",
    ]
    head = manifest.decisions["head"]
    assert (head["block_size"], head["selector_rank"], head["selector_top_k"]) == (8, 8, 4)
    with pytest.raises(SettingError, match=r"'dflash': .* has no dflash_block"):
        load_artifact(dflash2_artifact, drafter="dflash")


def test_the_manifest_describes_a_dspark_head(dspark_artifact: Path) -> None:
    manifest = Manifest.read(dspark_artifact)
    assert manifest.drafter == "dspark"
    assert manifest.methods == [
        *("prefill", "target_verify", "dflash_context", "dspark_block", "dspark_bias"),
        "copy_rows",
    ]
    head = manifest.decisions["head"]
    assert (head["block_size"], head["markov_rank"], head["confidence_rank"]) == (7, 8, 8)
    assert head["sample_from_anchor"] is True
