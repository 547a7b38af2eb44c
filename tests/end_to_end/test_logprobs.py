"""Log probabilities from a real `.pte`: the target's own, the same however a text is decoded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.targets import load_target
from support.runner.mixed_prompts import mixed_prompts

QUESTION = "Ada has 27 marbles. Marco has 6 times as many. How many marbles do they have together?"
HOT: dict[str, Any] = {"temperature": 3.0, "seed": 5}
EVERYTHING = HOT | {"top_k": 40, "top_p": 0.95, "presence_penalty": 0.5, "logit_bias": {40: 1.0}}
ORDER = 2e-2
"""What two orders of sums in a forward may make of a logit."""
SHAPES: list[dict[str, Any]] = [
    {"chain_len": 1}, {"chain_len": 4}, {"chain_len": 15}, {"chain_len": "auto"},
    {"tree": (3, 2, 7)}, {"tree": (6, 8, 32)}, {"tree": "auto"},
]  # fmt: skip


@torch.no_grad()
def by_eager_code(text: list[int]) -> Tensor:
    """Logits of the target [tokens, vocabulary], behind each of a text's tokens."""
    target = load_target("gemma4-tiny", 256)
    logits, _ = target.forward_logits_taps(torch.tensor([text]), torch.arange(len(text)))
    return logits[0]


def by_the_program(runner: Runner, text: list[int]) -> Tensor:
    """The same, of one step."""
    first, sequence = torch.tensor([0]), torch.tensor([0])
    step = chain_rows(torch.tensor([text]), first, sequence, runner.constants.tail)
    return runner.verify(step).logits[0]


@pytest.mark.parametrize("how", [{}, HOT, HOT | {"presence_penalty": 1.5}])
def test_they_are_the_targets_own(int4_head: Runner, how: dict[str, Any]) -> None:
    """Before temperature and penalties, from the first token on; and the likeliest beside it."""
    prompt = int4_head.encode(QUESTION)
    result = int4_head.generate(prompt, 64 - len(prompt), logprobs=20, **how)
    text = [*prompt, *result.token_ids]
    for logits, near in ((by_the_program(int4_head, text), 1e-6), (by_eager_code(text), ORDER)):
        rows = logits[len(prompt) - 1 : -1].double().log_softmax(dim=-1)
        for one, row in zip(told(result), rows, strict=True):
            assert one.logprob == pytest.approx(float(row[one.id]), abs=near)
            largest = pytest.approx(row.topk(20).values.tolist(), abs=near)
            assert [found for _, found in one.top] == largest
            assert row[[token for token, _ in one.top]].tolist() == largest
    likeliest = [one.id == one.top[0][0] for one in told(result)]
    assert all(likeliest) or how, "greedy: the likeliest of each"
    assert not all(likeliest) or not how


def test_those_of_sampling_are_what_a_token_was_drawn_by(int4_head: Runner) -> None:
    prompt = int4_head.encode(QUESTION)
    how = {"temperature": 2.0, "top_k": 7, "seed": 3}
    result = int4_head.generate(prompt, 20, logprobs=20, logprobs_of="sampling", **how)
    logits = by_the_program(int4_head, [*prompt, *result.token_ids])
    for one, row in zip(told(result), logits[len(prompt) - 1 : -1].double(), strict=True):
        expected = (row.topk(7).values / 2.0).log_softmax(dim=0)
        assert [found for _, found in one.top] == pytest.approx(expected.tolist(), abs=1e-6)
        assert (one.id, one.logprob) in one.top


@pytest.mark.parametrize("how", [{}, HOT, EVERYTHING, EVERYTHING | {"logprobs_of": "sampling"}])
@pytest.mark.parametrize("trained", [True, False])
def test_no_bit_depends_on_how_a_text_is_decoded(
    int4_head: Runner, batch_runner: Runner, trained: bool, how: dict[str, Any]
) -> None:
    """Plain, along chains and trees, and beside others; of a trained head and of a random one."""
    runner = int4_head if trained else batch_runner
    prompts = mixed_prompts(runner)[2::90]
    asked = how | {"logprobs": 20, "max_new_tokens": 20}
    plain = [runner.generate(prompt, speculate=False, **asked) for prompt in prompts]
    expected = [told(result) for result in plain]
    assert [[one.id for one in text] for text in expected] == [r.token_ids for r in plain]
    for shape in SHAPES if how == EVERYTHING else SHAPES[::2]:
        found = [told(runner.generate(prompt, **asked, **shape)) for prompt in prompts]
        assert found == expected, shape
    together = runner.generate_many(prompts, 4, chain_len=3, **asked)
    assert [told(result) for result in together] == expected


def told(result: object) -> list[TokenLogprobs]:
    assert isinstance(result, Result) and result.logprobs is not None
    return result.logprobs


def test_a_line_of_json_has_them(int4_head_artifact: Path, int4_head: Runner) -> None:
    run = CliRunner().invoke
    options = str(int4_head_artifact), "--prompt", QUESTION, "--logprobs"
    line = json.loads(run(main, [*options, "2", "--json"]).stdout)
    assert line["logprobs"] == [
        one.to_json() for one in told(int4_head.generate(QUESTION, logprobs=2))
    ]
    assert line["parameters"]["logprobs"] == 2
    without = run(main, [*options, "2"])
    assert without.exit_code == 2 and "--logprobs goes with --json" in without.output
    refused = run(main, [*options, "21", "--json"])
    assert refused.exit_code == 2
    assert refused.output.endswith("'--logprobs': 21 is not in the range 0<=x<=20.\n")
