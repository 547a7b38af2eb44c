"""How likely a prompt's tokens are, from a real `.pte`: the target's own word, whatever else runs,
and no token of the answer depends on who asks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.targets import load_target
from support.runner.mixed_prompts import mixed_prompts

QUESTION = "Ada has 27 marbles. Marco has 6 times as many. How many marbles do they have together?"
HOT: dict[str, Any] = {"temperature": 3.0, "seed": 5}
ORDER = 2e-2
"""What two orders of sums in a forward may make of a logit."""
SHAPES: list[dict[str, Any]] = [
    {"speculate": False}, {"chain_len": 1}, {"chain_len": 7}, {"tree": (3, 2, 7)},
]  # fmt: skip


def scored(result: object) -> list[TokenLogprobs]:
    assert isinstance(result, Result) and result.prompt_logprobs is not None
    return result.prompt_logprobs


@torch.no_grad()
def test_they_are_the_targets_own(int4_head: Runner) -> None:
    """Behind layers whose window is shorter than the text: of the model, whatever is sampled."""
    text = int4_head.encode(QUESTION * 2)
    target = load_target("gemma4-tiny", 256)
    logits, _ = target.forward_logits_taps(torch.tensor([text]), torch.arange(len(text)))
    expected = logits[0, :-1].double().log_softmax(dim=-1)
    result = int4_head.generate(text, 4, prompt_logprobs=20, **HOT, logprobs_of="sampling")
    first, *others = scored(result)
    assert (first.id, first.logprob, list(first.top)) == (text[0], None, [])
    assert [one.id for one in others] == text[1:]
    for one, row in zip(others, expected, strict=True):
        assert one.logprob == pytest.approx(float(row[one.id]), abs=ORDER)
        largest = pytest.approx(row.topk(20).values.tolist(), abs=ORDER)
        assert [found for _, found in one.top] == largest
        assert row[[token for token, _ in one.top]].tolist() == largest


@pytest.mark.parametrize(
    ("trained", "how"), [(True, {}), (False, {}), (False, HOT | {"presence_penalty": 0.5})]
)
def test_no_bit_depends_on_what_else_is_asked_for(
    int4_head: Runner,
    batch_runner: Runner,
    trained: bool,
    how: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Alone in windows of any size, whatever drafts, and beside others; and the answers are those
    of who does not ask."""
    runner = int4_head if trained else batch_runner
    prompts = [*mixed_prompts(runner)[1:13:3], *mixed_prompts(runner)[20::150]]
    asked = how | {"max_new_tokens": 8, "ignore_eos": True}
    plain = [runner.generate(prompt, **asked).token_ids for prompt in prompts]
    asked["prompt_logprobs"] = 20
    with monkeypatch.context() as patch:
        patch.setattr(runner.target, "max_rows", 23)
        expected = [scored(runner.generate(prompt, **asked)) for prompt in prompts]
    assert [[one.id for one in told] for told in expected] == prompts
    for shape in SHAPES:
        found = [runner.generate(prompt, **asked, **shape) for prompt in prompts]
        assert [scored(result) for result in found] == expected, shape
        assert [result.token_ids for result in found] == plain, shape
    together = list(runner.generate_many(prompts, 4, reuse=True, **asked))
    assert [scored(result) for result in together] == expected
    assert [result.token_ids for result in together if isinstance(result, Result)] == plain


def bare(logprobs: Sequence[TokenLogprobs]) -> list[tuple[Any, ...]]:
    """Without offsets."""
    return [one[:3] for one in logprobs]


def test_those_of_a_prompt_are_those_of_the_answer_that_it_once_was(int4_head: Runner) -> None:
    """Bit by bit, where the prompt before it was short enough for `target_verify`."""
    for how in ({}, HOT):
        answer = int4_head.generate("Ada?", 40, logprobs=20, ignore_eos=True, **how)
        prompt = int4_head.encode("Ada?")
        assert len(prompt) < int4_head.constants.min_prefill_chunk and answer.logprobs is not None
        again = int4_head.generate([*prompt, *answer.token_ids], 0, prompt_logprobs=20)
        assert bare(scored(again)[len(prompt) :]) == bare(answer.logprobs)


def test_a_line_of_json_has_them(int4_head_artifact: Path, int4_head: Runner) -> None:
    run = CliRunner().invoke
    options = str(int4_head_artifact), "--prompt", QUESTION, "--params"
    two = '{"prompt_logprobs": 2}'
    line = json.loads(run(main, [*options, two, "--max-new-tokens", "0", "--json"]).stdout)
    told = scored(int4_head.generate(QUESTION, 0, prompt_logprobs=2))
    assert line["prompt_logprobs"] == [one.to_json() for one in told]
    assert (line["logprobs"], line["new_tokens"]) == (None, 0)
    assert line["parameters"] == {"max_new_tokens": 0, "prompt_logprobs": 2}
    without = run(main, [*options, two])
    assert without.exit_code == 2 and "prompt_logprobs goes with --json" in without.output
    refused = run(main, [*options, '{"prompt_logprobs": 21}', "--json"])
    line = "prompt_logprobs 21: must be a whole number from 0 to 20\n"
    assert refused.exit_code == 2 and refused.output.endswith(line)
    with pytest.raises(SettingError, match="must be at least 1, or 0 with prompt_logprobs"):
        int4_head.generate(QUESTION, 0, logprobs=2)
