"""Log probabilities of answers and prompts from a real `.pte`: the target's own, the same however a
text is decoded and whatever else runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import no_moves
from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.targets import load_target
from support.runner.lossless import mixed_prompts

QUESTION = "Ada has 27 marbles. Marco has 6 times as many. How many marbles do they have together?"
HOT: dict[str, Any] = {"temperature": 3.0, "seed": 5}
EVERYTHING = HOT | {"top_k": 40, "top_p": 0.95, "presence_penalty": 0.5, "logit_bias": {40: 1.0}}
ORDER = 2e-2
"""What two orders of sums in a forward may make of a logit."""
SHAPES: list[dict[str, Any]] = [
    {"chain_len": 1}, {"chain_len": 4}, {"chain_len": 15}, {"chain_len": "auto"},
    {"tree": (3, 2, 7)}, {"tree": (6, 8, 32)}, {"tree": "auto"},
]  # fmt: skip
SCORED_SHAPES: list[dict[str, Any]] = [
    {"speculate": False}, {"chain_len": 1}, {"chain_len": 7}, {"tree": (3, 2, 7)},
]  # fmt: skip


def answered(result: object) -> list[TokenLogprobs]:
    assert isinstance(result, Result) and result.logprobs is not None
    return result.logprobs


def scored(result: object) -> list[TokenLogprobs]:
    assert isinstance(result, Result) and result.prompt_logprobs is not None
    return result.prompt_logprobs


@torch.no_grad()
def eager_logits(text: list[int]) -> Tensor:
    """Return the target's logits after each token of a text, [tokens, V]."""
    target = load_target("gemma4-tiny", 256)
    logits, _ = target.forward_logits_taps(torch.tensor([text]), torch.arange(len(text)))
    return logits[0]


def program_logits(runner: Runner, text: list[int]) -> Tensor:
    """Return the program's logits after each token of a text in one step, [tokens, V]."""
    first, sequence = torch.tensor([0]), torch.tensor([0])
    tail = runner.constants.tail
    step = chain_rows(torch.tensor([text]), first, sequence, tail)
    return runner.target.verify(step, no_moves(1, tail, first.device)).logits[0]


def check_tokens(tokens: list[TokenLogprobs], logits: Tensor, near: float) -> None:
    """Check the log probabilities of tokens, and the likeliest 20 ones with theirs."""
    for token, row in zip(tokens, logits.double().log_softmax(dim=-1), strict=True):
        assert token.logprob == pytest.approx(float(row[token.id]), abs=near)
        largest = pytest.approx(row.topk(20).values.tolist(), abs=near)
        assert [logprob for _, logprob in token.top] == largest
        assert row[[number for number, _ in token.top]].tolist() == largest


@pytest.mark.parametrize("how", [{}, HOT, HOT | {"presence_penalty": 1.5}])
def test_log_probabilities_are_the_targets_own(tiny: Runner, how: dict[str, Any]) -> None:
    """Before temperature and penalties, from the first token on."""
    prompt = tiny.encode(QUESTION)
    result = tiny.generate(prompt, 64 - len(prompt), logprobs=20, **how)
    text = [*prompt, *result.token_ids]
    for logits, near in ((program_logits(tiny, text), 1e-6), (eager_logits(text), ORDER)):
        check_tokens(answered(result), logits[len(prompt) - 1 : -1], near)
    likeliest = [token.id == token.top[0][0] for token in answered(result)]
    assert all(likeliest) or how, "greedy: the likeliest of each"
    assert not all(likeliest) or not how


def test_log_probabilities_of_a_prompt_are_the_targets_own(tiny: Runner) -> None:
    """After layers whose window is shorter than the text: of the model, whatever is sampled."""
    text = tiny.encode(QUESTION * 2)
    result = tiny.generate(text, 4, prompt_logprobs=20, **HOT, logprobs_of="sampling")
    first, *others = scored(result)
    assert (first.id, first.logprob, list(first.top)) == (text[0], None, [])
    assert [token.id for token in others] == text[1:]
    check_tokens(others, eager_logits(text)[:-1], ORDER)


def test_log_probabilities_of_sampling_are_those_that_a_token_was_drawn_by(
    tiny: Runner,
) -> None:
    prompt = tiny.encode(QUESTION)
    how: dict[str, Any] = {"temperature": 2.0, "top_k": 7, "seed": 3}
    result = tiny.generate(prompt, 20, logprobs=20, logprobs_of="sampling", **how)
    logits = program_logits(tiny, [*prompt, *result.token_ids])
    for token, row in zip(answered(result), logits[len(prompt) - 1 : -1].double(), strict=True):
        expected = (row.topk(7).values / 2.0).log_softmax(dim=0)
        top = [logprob for _, logprob in token.top]
        assert top == pytest.approx(expected.tolist(), abs=1e-6)
        assert (token.id, token.logprob) in token.top


@pytest.mark.parametrize("how", [
    {},
    pytest.param(HOT, marks=pytest.mark.slow),
    pytest.param(EVERYTHING, marks=pytest.mark.slow),
    EVERYTHING | {"logprobs_of": "sampling"},
])  # fmt: skip
@pytest.mark.parametrize("trained", [True, False])
def test_no_bit_depends_on_how_a_text_is_decoded(
    tiny: Runner, batch_runner: Runner, trained: bool, how: dict[str, Any]
) -> None:
    """Plain, along chains and trees, and in a batch; of a trained head and of a random one."""
    runner = tiny if trained else batch_runner
    prompts = mixed_prompts(runner)[2::90]
    options = how | {"logprobs": 20, "max_new_tokens": 20}
    plain = [runner.generate(prompt, speculate=False, **options) for prompt in prompts]
    expected = [answered(result) for result in plain]
    assert [[token.id for token in text] for text in expected] == [r.token_ids for r in plain]
    for shape in SHAPES if how == EVERYTHING else SHAPES[::2]:
        drafted = [answered(runner.generate(prompt, **options, **shape)) for prompt in prompts]
        assert drafted == expected, shape
    together = runner.generate_many(prompts, 4, chain_len=3, **options)
    assert [answered(result) for result in together] == expected


@pytest.mark.parametrize(
    ("trained", "how"), [(True, {}), (False, {}), (False, HOT | {"presence_penalty": 0.5})]
)
def test_no_bit_of_a_prompt_depends_on_how_it_is_scored(
    tiny: Runner,
    batch_runner: Runner,
    trained: bool,
    how: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In windows of any size, with any drafts, and in a batch; scoring changes no answer."""
    runner = tiny if trained else batch_runner
    prompts = [*mixed_prompts(runner)[1:13:3], *mixed_prompts(runner)[20::150]]
    options = how | {"max_new_tokens": 8, "ignore_eos": True}
    plain = [runner.generate(prompt, **options).token_ids for prompt in prompts]
    options["prompt_logprobs"] = 20
    with monkeypatch.context() as patch:
        patch.setattr(runner.target, "max_rows", 23)
        expected = [scored(runner.generate(prompt, **options)) for prompt in prompts]
    assert [[token.id for token in tokens] for tokens in expected] == prompts
    for shape in SCORED_SHAPES:
        results = [runner.generate(prompt, **options, **shape) for prompt in prompts]
        assert [scored(result) for result in results] == expected, shape
        assert [result.token_ids for result in results] == plain, shape
    together = list(runner.generate_many(prompts, 4, reuse=True, **options))
    assert [scored(result) for result in together] == expected
    assert [result.token_ids for result in together if isinstance(result, Result)] == plain


@pytest.mark.parametrize("how", [{}, HOT])
def test_an_answer_that_becomes_a_prompt_keeps_its_log_probabilities(
    tiny: Runner, how: dict[str, Any]
) -> None:
    """Bit by bit, where the prompt before it was short enough for `target_verify`."""
    answer = tiny.generate("Ada?", 40, logprobs=20, ignore_eos=True, **how)
    prompt = tiny.encode("Ada?")
    assert len(prompt) < tiny.constants.min_prefill_chunk
    again = tiny.generate([*prompt, *answer.token_ids], 0, prompt_logprobs=20)
    without_offsets = [token[:3] for token in scored(again)[len(prompt) :]]
    assert without_offsets == [token[:3] for token in answered(answer)]


def test_a_line_of_json_has_log_probabilities(tiny_artifact: Path, tiny: Runner) -> None:
    run = CliRunner().invoke
    options = str(tiny_artifact), "--prompt", QUESTION, "--logprobs"
    line = json.loads(run(main, [*options, "2", "--json"]).stdout)
    expected = answered(tiny.generate(QUESTION, logprobs=2))
    assert line["logprobs"] == [token.to_json() for token in expected]
    assert line["parameters"]["logprobs"] == 2


def test_a_line_of_json_has_log_probabilities_of_its_prompt(
    tiny_artifact: Path, tiny: Runner
) -> None:
    run = CliRunner().invoke
    options = str(tiny_artifact), "--prompt", QUESTION, "--params"
    two = '{"prompt_logprobs": 2}'
    line = json.loads(run(main, [*options, two, "--max-new-tokens", "0", "--json"]).stdout)
    expected = scored(tiny.generate(QUESTION, 0, prompt_logprobs=2))
    assert line["prompt_logprobs"] == [token.to_json() for token in expected]
    assert (line["logprobs"], line["new_tokens"]) == (None, 0)
    assert line["parameters"] == {"max_new_tokens": 0, "prompt_logprobs": 2}
    refused = run(main, [*options, '{"prompt_logprobs": 21}', "--json"])
    error = "prompt_logprobs 21: must be a whole number from 0 to 20\n"
    assert refused.exit_code == 2 and refused.output.endswith(error)
    with pytest.raises(SettingError, match="must be at least 1, or 0 with prompt_logprobs"):
        tiny.generate(QUESTION, 0, logprobs=2)
