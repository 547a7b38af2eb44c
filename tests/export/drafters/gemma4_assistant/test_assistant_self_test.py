"""What the self-test says of an assistant, and of ones that read their target in another way."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_aot.export.drafters.gemma4_assistant.kind import self_test
from eagle_aot.export.drafters.self_test.comparison import log_gain
from eagle_aot.export.drafters.self_test.verdict import Ranking
from support.checkpoint_edits import Tensors, edit_config, edit_tensors
from support.golden_cases import GOLDEN, golden_case
from support.heads.assistants import assistant_pair

DEEP, SMALL = GOLDEN / "mtp" / "dense_k_eq_v", GOLDEN / "mtp" / "two_layers"
CPU = torch.device("cpu")


def prompts(case: Path) -> list[list[int]]:
    """Of the one text that the assistant was fitted to."""
    text = golden_case(f"mtp/{case.name}")[1]["expected.text"].tolist()
    return [text[:length] for length in range(40, 65, 3)]


def judged(case: Path, assistant: Path | None = None) -> Ranking:
    pair, target, draft = assistant_pair(case, assistant)
    verdict = self_test(pair, prompts(case), (), CPU, lambda stage: None)
    assert target.tap_layers == draft.tap_layers, "it leaves the pair as it was"
    assert isinstance(verdict, Ranking)
    return verdict


def test_the_reading_that_made_the_case_is_the_best_of_all() -> None:
    """Windows and positions by one are told apart, and too alike to be worth a warning."""
    found = judged(DEEP)
    assert found.kind == "fits" and found.entries[0] is found.chosen
    gains = {e.reading.name: log_gain(found.chosen.score, e.score) for e in found.entries[1:]}
    assert all(gain.value < 0 for gain in gains.values())
    slight = {"window +0 (vLLM's)", "window -1 (mlx-vlm's)", "queries at the newest key (vLLM's)"}
    assert slight <= {name for name, gain in gains.items() if gain.value > -0.05}
    told = {"states before the final norm", "embeddings unscaled", "halves swapped"}
    assert (told | {"keys of layer 3"}) <= {n for n, gain in gains.items() if gain.value < -0.05}


def swap_halves(tensors: Tensors) -> None:
    first, second = tensors["pre_projection.weight"].chunk(2, dim=1)
    tensors["pre_projection.weight"] = torch.cat((second, first), dim=1)


def scale_embeddings(tensors: Tensors) -> None:
    tensors["pre_projection.weight"][:, :32] *= 32**0.5


@pytest.mark.parametrize(
    ("case", "config", "change", "found"),
    [
        (DEEP, {"draft_reading": {"kv_layers": [3, 5]}}, None,
         'keys of layer 4 ("draft_reading": {"kv_layers": [4, 5]}'),
        (SMALL, {}, swap_halves, "halves swapped (swap the column halves of pre_projection)"),
        (SMALL, {}, scale_embeddings, "embeddings unscaled (divide the first 32 columns"),
    ],
    ids=["another layer", "halves", "scale"],
)  # fmt: skip
def test_an_assistant_that_is_wired_wrongly_is_told_how_to_mend_it(
    case: Path,
    config: dict[str, Any],
    change: Callable[[Tensors], None] | None,
    found: str,
    tmp_path: Path,
) -> None:
    assistant = shutil.copytree(case / "assistant", tmp_path / "assistant")
    edit_config(assistant, **config)
    if change is not None:
        edit_tensors(assistant, change)
    verdict = judged(case, assistant)
    assert verdict.kind == "other reading" and verdict.is_warning
    assert f"drafts clearly better: {found}" in verdict.message


def test_one_of_another_target_is_worth_nothing(tmp_path: Path) -> None:
    assistant = shutil.copytree(SMALL / "assistant", tmp_path / "assistant")
    edit_tensors(assistant, shuffle)
    assert judged(SMALL, assistant).kind == "chance"


def shuffle(tensors: Tensors) -> None:
    torch.manual_seed(0)
    for name in ("pre_projection.weight", "model.embed_tokens.weight"):
        tensors[name] = tensors[name][:, torch.randperm(tensors[name].shape[1])].contiguous()


def test_too_short_a_text_says_nothing() -> None:
    pair, _, _ = assistant_pair(SMALL)
    verdict = self_test(pair, prompts(SMALL)[:1], (), CPU, lambda stage: None)
    assert verdict.kind == "unknown" and "too few to tell" in verdict.message
