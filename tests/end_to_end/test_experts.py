"""A target with experts through a real `.pte`: logits are those of transformers, and a text is the
same however it is drafted and whichever texts share its experts."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import no_moves
from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.targets import load_target
from eagle_aot.targets.decoder.experts import Experts
from support.gemma_oracle import run_in_chunks
from support.golden_cases import golden_case

CASE = "moe/qwen3_moe"
NEW_TOKENS, ROWS = 24, 8
FIRST = torch.zeros(1, dtype=torch.int64)
DRAFTS: list[dict[str, Any]] = [{"chain_len": 4}, {"tree": (4, 4, 16)}, {"chain_len": "auto"}]


def first_experts(prompt: list[int]) -> set[int]:
    """Return the experts that the last token of a prompt takes in the first layer."""
    target, taken = load_target(golden_case(CASE)[0], 64), list[Tensor]()
    assert isinstance(target, nn.Module)
    layer = next(module for module in target.modules() if isinstance(module, Experts))
    layer.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[2]))
    run_in_chunks(target, torch.tensor([prompt]), [len(prompt)])
    return set(taken[0][-1].tolist())


def test_logits_and_24_new_tokens_are_those_of_transformers(experts_runner: Runner) -> None:
    directory, case = golden_case(CASE)
    tokens, rows = case["input.tokens"], list[Tensor]()
    for start in range(0, len(tokens), ROWS):
        chunk = tokens[None, start : start + ROWS]
        step = chain_rows(chunk, torch.tensor([start]), FIRST, experts_runner.constants.tail)
        moves = no_moves(1, experts_runner.constants.tail, "cpu")
        rows.append(experts_runner.target.verify(step, moves)[0][0].clone())
    assert (torch.cat(rows) - case["expected.logits"]).abs().max() < 1e-4
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    seen = torch.ones_like(tokens[None])
    expected = model.generate(tokens[None], attention_mask=seen, max_new_tokens=24, do_sample=False)
    text = experts_runner.generate(tokens.tolist(), 24, speculate=False).token_ids
    assert text == expected[0, len(tokens) :].tolist()


QUANTISED = "experts_int8_runner", "experts_int4_runner"


@pytest.mark.slow
@pytest.mark.parametrize("fixture", QUANTISED)
def test_drafts_change_no_token_of_quantised_experts(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    runner: Runner = request.getfixturevalue(fixture)
    prompt = [random.Random(5).randrange(160) for _ in range(70)]
    plain = runner.generate(prompt, NEW_TOKENS, speculate=False).token_ids
    for drafts in DRAFTS:
        assert runner.generate(prompt, NEW_TOKENS, **drafts).token_ids == plain, drafts
        longer = prompt + plain[:12]
        assert runner.generate(longer, 12, **drafts).token_ids == plain[12:], drafts


def test_drafts_and_neighbours_change_no_token(experts_runner: Runner) -> None:
    """Neighbours in a batch are a text that takes the same experts, and ones that take others."""
    rng, runner = random.Random(5), experts_runner
    prompts = [[rng.randrange(160) for _ in range(length)] for length in (5, 70, 17)]
    plain = [runner.generate(p, NEW_TOKENS, speculate=False).token_ids for p in prompts]
    for prompt, text in zip(prompts, plain, strict=True):
        for drafts in DRAFTS:
            assert runner.generate(prompt, NEW_TOKENS, **drafts).token_ids == text, drafts
            longer = prompt + text[:12]  # what prompt lookup would draft
            assert runner.generate(longer, 12, **drafts).token_ids == text[12:], drafts
    first, *others = map(first_experts, prompts)
    assert any(first & other for other in others) and any(first - other for other in others)
    batch = [prompts[0], *prompts]
    ways: list[dict[str, Any]] = [{"speculate": False}, *DRAFTS[:2]]
    for drafts in ways:
        results = list(runner.generate_many(batch, max_new_tokens=NEW_TOKENS, **drafts))
        assert [r.token_ids for r in results if isinstance(r, Result)] == [plain[0], *plain]
