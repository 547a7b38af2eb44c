"""Sampling from a real `.pte`: one text, however it is decoded."""

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.lab.checks.sampled_texts import (
    PARAMETERS,
    compare_alone,
    compare_in_batch,
    decode_plainly,
    sampled_requests,
)
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.prefill import prefill
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.decode.step import StepRows
from eagle_aot.runtime_runner.decode.target import Forward
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.lossless import mixed_prompts

PROMPT = "Tom has 3 pens. He buys 4 more. How many pens does he have?"


def run(*arguments: str | Path, typed: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], input=typed)


@pytest.mark.parametrize("fixture", ["tiny", pytest.param("batch_runner", marks=pytest.mark.slow)])
def test_speculation_changes_no_token(fixture: str, request: pytest.FixtureRequest) -> None:
    """With a trained head, and with one that is nearly always wrong."""
    runner: Runner = request.getfixturevalue(fixture)
    prompts = mixed_prompts(runner)[:: 200 // len(PARAMETERS)][: len(PARAMETERS)]
    texts = decode_plainly(runner, list(sampled_requests(prompts, 1, 24)))
    counts = compare_alone(runner, texts) | {"in a batch": compare_in_batch(runner, texts)}
    assert {name: same.differing for name, same in counts.items() if same.differing} == {}
    assert len({tuple(text.tokens) for text in texts}) == len(texts)


def test_a_trained_head_drafts_what_is_sampled(
    tiny: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It adds the noise that the target will add. Without, it would be right far less often."""
    prompts = mixed_prompts(tiny)[-8:]
    with_noise = acceptance(tiny, prompts)

    def likeliest(
        drafter: Eagle3Drafter, sampler: Sampler, logits: Tensor, *positions: Tensor
    ) -> Tensor:
        return drafter._in_target(logits.argmax(dim=-1))

    monkeypatch.setattr(Eagle3Drafter, "_choose", likeliest)
    assert with_noise > 3 * acceptance(tiny, prompts)


@torch.no_grad()
def sampled_drafts(
    runner: Runner, prompt: list[int], sampling: SamplingParams, count: int
) -> list[tuple[bool, float]]:
    """Decode one text with one draft a round. Return for each draft whether it was accepted, and
    the sum of min(p, q) over all tokens: the largest chance that a draw from the head's
    distribution q equals one from the target's p."""
    drafter, constants, drafts = runner.drafter, runner.constants, list[tuple[bool, float]]()
    assert isinstance(drafter, Eagle3Drafter) and drafter.target_ids is not None
    sampler = Sampler(1, "cpu", constants.max_seq_len, constants.vocab_size)
    sampler.begin(0, sampling, prompt)
    running, logits = BatchState([0], constants.tail, "cpu", sampler), list[Tensor]()
    verify = runner.target.verify

    def logged(step: StepRows, moves: Tensor, *, largest_only: bool = False) -> Forward:
        forward = verify(step, moves, largest_only=largest_only)
        logits.append(forward.logits)
        return forward

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.target, "verify", logged)
        round_ = Round(runner.target, drafter, 1, running)
        prefill(round_, prompt, Stats(chain_len=1))
        end = min(len(prompt) + count, constants.max_seq_len - constants.tail)
        while int(running.position[0]) < end:
            q = probabilities(drafter.logits(running.sequences)[0, 0], sampling)
            (outcome,) = round_.outcomes(round_.step())
            p = probabilities(logits[-1][0, 0], sampling)[drafter.target_ids]
            drafts.append((outcome.accepted == 1, float(torch.minimum(p, q).sum())))
            if {*constants.eos_ids} & {*outcome.tokens[: outcome.accepted + 1]}:
                break
    return drafts


def probabilities(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """float32 [V] -> float64 [V]."""
    return (logits.double() / sampling.temperature).softmax(dim=0)


def test_shared_noise_is_right_nearly_as_often_as_draws_can_be(tiny: Runner) -> None:
    """The expectation is between (1 - d) / (1 + d) and 1 - d, d being the distributions' distance
    (Daliri, Musco, Suresh, arXiv 2408.07978); four deviations of so many drafts are allowed for."""
    drafts = [
        draft
        for seed, prompt in enumerate(mixed_prompts(tiny)[-8:])
        for draft in sampled_drafts(tiny, prompt, SamplingParams(temperature=4.0, seed=seed), 40)
    ]
    accepted = fmean(accepted for accepted, _ in drafts)
    optimum = fmean(optimum for _, optimum in drafts)
    least = fmean(optimum / (2 - optimum) for _, optimum in drafts)
    assert least - 2 / len(drafts) ** 0.5 < accepted < optimum + 2 / len(drafts) ** 0.5


def acceptance(runner: Runner, prompts: list[list[int]]) -> float:
    """Return the acceptance rate at a high temperature: the shipped pair is sure of most tokens."""
    stats = [runner.generate(prompt, 30, 4, temperature=4.0, seed=3).stats for prompt in prompts]
    return sum(s.accepted for s in stats) / sum(s.drafted for s in stats)


def test_a_text_depends_on_its_seed_alone(tiny: Runner) -> None:
    hot: dict[str, Any] = {"temperature": 4.0, "max_new_tokens": 24}
    texts = [tiny.generate(PROMPT, **hot, seed=seed).token_ids for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    first, second = tiny.generate(PROMPT, **hot), tiny.generate(PROMPT, **hot)
    assert first.parameters.seed != second.parameters.seed
    assert tiny.answer(PROMPT, first.parameters).token_ids == first.token_ids
    with pytest.raises(SettingError, match="n 2"):
        tiny.generate(PROMPT, n=2)


def test_stop_ids_can_wait_or_be_left_out(tiny: Runner) -> None:
    plain = tiny.generate(PROMPT)
    assert plain.finish_reason == "stop"
    count = len(plain.token_ids)
    longer = tiny.generate(PROMPT, min_tokens=count + 3)
    assert len(longer.token_ids) > count + 3 or longer.finish_reason != "stop"
    assert longer.token_ids[: count - 1] == plain.token_ids[:-1]
    assert plain.token_ids[-1] not in longer.token_ids[: count + 3]
    on = tiny.generate(PROMPT, count + 5, ignore_eos=True)
    assert on.finish_reason == "length" and on.token_ids[:count] == plain.token_ids


def test_an_echo_begins_with_the_prompt(tiny: Runner) -> None:
    shown: list[str] = []
    plain = tiny.generate(PROMPT, stop_texts=["pens"])
    echoed = tiny.generate(PROMPT, echo=True, stop_texts=["pens"], on_text=shown.append)
    assert echoed.token_ids == plain.token_ids and plain.text is not None
    assert echoed.text is not None and echoed.text.endswith(plain.text) and PROMPT in echoed.text
    assert "".join(shown) == echoed.text


def test_a_line_of_json_can_be_run_again(tiny_artifact: Path, tiny: Runner) -> None:
    bias = "--params", '{"logit_bias": {"40": 1.5}}'
    options = "--temperature", "3", "--top-k", "99", *bias, "--json"
    line = json.loads(run(tiny_artifact, "--prompt", PROMPT, *options).output)
    assert line["seed"] == line["parameters"]["seed"]
    again = tiny.answer(PROMPT, GenerationParams.from_json(line["parameters"]))
    assert again.token_ids == line["token_ids"]


def test_a_seed_that_was_drawn_is_reported(
    tiny_artifact: Path, tmp_path: Path, tiny: Runner
) -> None:
    """With each answer, for any source of prompts."""
    (lines := tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": PROMPT}) + "\n")
    for how in (("--prompt", PROMPT), ("--prompts-jsonl", lines, "--batch-size", "1"), ("--chat",)):
        hot = "--temperature", "3", "--max-new-tokens", "4"
        answer = run(tiny_artifact, *how, *hot, typed=PROMPT)
        (seed,) = re.findall(r"\bseed +(\d+)", answer.stderr)
        found = tiny.generate(PROMPT, 4, temperature=3.0, seed=int(seed)).text
        assert found is not None and answer.stdout == found + "\n"
