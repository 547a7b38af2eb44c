"""What the self-test says of the shipped head, and of heads whose files mislead."""

import itertools
import json
import re
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import nn

from eagle_aot.common.self_test import MAX_NEW_TOKENS, PROMPTS
from eagle_aot.common.tokenizer import read_tokenizer
from eagle_aot.export import load_draft
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.self_test import readings_of
from eagle_aot.export.prepare.int4 import dequantize_int4
from eagle_aot.export.self_test.text import TargetText, continue_greedily
from eagle_aot.export.self_test.verdict import Verdict, rank
from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.family import TINY_DIR
from support.checkpoint_edits import edit_config
from support.heads.faulty import FAULTS, Fault, write_faulty_head

EOS_IDS = (1, 4)
STORIES = 20
"""Problems of the target's own kind: single taps need so many to be distinguished."""


@pytest.fixture(scope="module")
def target() -> TapTarget:
    """Its weights dense, as in XNNPACK's programs: taken from INT4 once, not for every token."""
    target = load_target("gemma4-tiny", 256)
    assert isinstance(target, nn.Module)
    return dequantize_int4(target)


def texts_of(target: TapTarget, prompts: list[str]) -> list[TargetText]:
    """Greedy answers, with the hidden states of every boundary."""
    tokenizer, boundaries = read_tokenizer(TINY_DIR / "target"), range(target.num_hidden_layers + 1)
    answer = partial(
        continue_greedily,
        target,
        boundaries=boundaries,
        max_new_tokens=MAX_NEW_TOKENS,
        eos_ids=EOS_IDS,
        device=torch.device("cpu"),
    )
    return [answer(tokenizer.encode(prompt)) for prompt in prompts]


def judged(draft: Eagle3Draft, texts: list[TargetText], target: TapTarget) -> Verdict:
    return rank(readings_of(draft, target.num_hidden_layers), texts, target.vocab_size)


@pytest.fixture(scope="module")
def built_in(target: TapTarget) -> list[TargetText]:
    return texts_of(target, list(PROMPTS))


@pytest.fixture(scope="module")
def many_stories(target: TapTarget) -> list[TargetText]:
    return texts_of(target, [s.question for s in itertools.islice(stories(5, "test"), STORIES)])


def test_the_shipped_head_fits(target: TapTarget, built_in: list[TargetText]) -> None:
    verdict = judged(load_draft(TINY_DIR / "head", target, 256), built_in, target)
    assert verdict.kind == "fits" and not verdict.is_warning
    assert verdict.entries[0] is verdict.chosen
    assert verdict.chosen.score.rounds.tau > 2.5


@pytest.fixture(scope="module")
def judge(
    target: TapTarget, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Fault], tuple[Path, Verdict]]:
    """Write a head with a fault and judge it, once; returns its directory and the verdict."""

    @cache
    def judge(fault: Fault) -> tuple[Path, Verdict]:
        texts = request.getfixturevalue("many_stories" if fault.slight else "built_in")
        directory = write_faulty_head(fault, tmp_path_factory.mktemp("faulty") / "head")
        return directory, judged(load_draft(directory, target, 256), texts, target)

    return judge


@pytest.mark.parametrize(
    "fault",
    [*FAULTS[:4], *(pytest.param(fault, marks=pytest.mark.slow) for fault in FAULTS[4:])],
    ids=[fault.name for fault in FAULTS],
)
def test_a_fault_is_found(fault: Fault, judge: Callable[[Fault], tuple[Path, Verdict]]) -> None:
    _, verdict = judge(fault)
    assert verdict.is_warning
    if fault.found is None:
        assert verdict.kind == "chance" and "do not belong together" in verdict.message
    else:
        assert verdict.kind == "other reading"
        assert f"drafts clearly better: {fault.found} (" in verdict.message


def test_the_tap_flag_of_the_message_mends_the_head(
    target: TapTarget, built_in: list[TargetText], judge: Callable[[Fault], tuple[Path, Verdict]]
) -> None:
    directory, verdict = judge(FAULTS[0])
    assert verdict.message.endswith("(--tap-layers 2,4,5)")
    mended = load_draft(directory, target, 256, tap_layers=(2, 4, 5))
    assert judged(mended, built_in, target).kind == "fits"


@pytest.mark.parametrize("name", ["wrong feedback", "wrong residual"])
def test_the_config_key_of_the_message_mends_the_head(
    name: str,
    target: TapTarget,
    built_in: list[TargetText],
    judge: Callable[[Fault], tuple[Path, Verdict]],
    tmp_path: Path,
) -> None:
    directory, verdict = judge(next(fault for fault in FAULTS if fault.name == name))
    pattern = r'\("(\w+)": (true|false) in the head\'s config.json\)'
    key, value = re.findall(pattern, verdict.message)[0]
    mended = Path(shutil.copytree(directory, tmp_path / "head"))
    edit_config(mended, **{key: json.loads(value)})
    assert judged(load_draft(mended, target, 256), built_in, target).kind == "fits"
