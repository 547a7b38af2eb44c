"""Answers of many texts at once are those of one text alone, and samples are the target's."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_aot.lab.training.heads.answers.writer import (
    AnswerWriter,
    TrainingPrompt,
    answer_greedily,
)
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget, read_target
from support.gemma_oracle import VOCAB, random_gemma, save_text_layout
from support.pre_norm_oracle import random_pre_norm, save

CPU = torch.device("cpu")
STOP_IDS = (3, 5, 32)
LONGEST, NEW = 30, 37
SLIDING = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any, Path], Path]]] = {
    "llama": (lambda: random_pre_norm("llama"), save),
    "qwen3, sliding": (lambda: random_pre_norm("qwen3", **SLIDING), save),
    "gemma4": (random_gemma, save_text_layout),
}


def random_prompts(count: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(VOCAB) for _ in range(rng.randint(1, LONGEST))] for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_greedy_answers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """More prompts than slots, of all lengths: slots are taken again while others run on."""
    build, write = MODELS[name]
    model, prompts = build(), random_prompts(13)
    target = read_target("auto", write(model, tmp_path), CPU)
    writer = AnswerWriter(
        target, slots=4, longest_prompt=LONGEST, max_new_tokens=NEW, stop_ids=STOP_IDS, seed=0
    )
    requests = (TrainingPrompt(number, ids, 0.0) for number, ids in enumerate(prompts))
    answers = {a.request.number: a.ids for ended in writer.write(requests) for a in ended}
    for number, ids in enumerate(prompts):
        expected = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=list(STOP_IDS),
            pad_token_id=0,
        )[0, len(ids) :].tolist()
        assert answers[number] == expected
    assert min(map(len, answers.values())) < max(map(len, answers.values())) == NEW


@pytest.fixture
def llama(tmp_path: Path) -> FrozenTarget:
    return read_target("auto", save(random_pre_norm("llama"), tmp_path), CPU)


def samples(target: FrozenTarget, count: int, temperature: float, seed: int) -> list[int]:
    """Answer one prompt again and again, and return the first tokens."""
    writer = AnswerWriter(
        target, slots=500, longest_prompt=4, max_new_tokens=1, stop_ids=(), seed=seed
    )
    requests = (TrainingPrompt(number, [1, 2, 3], temperature) for number in range(count))
    answers = [answer for ended in writer.write(requests) for answer in ended]
    return [a.ids[0] for a in sorted(answers, key=lambda a: a.request.number)]


@pytest.mark.slow
@torch.no_grad()
def test_samples_follow_the_targets_distribution(llama: FrozenTarget) -> None:
    count, temperature = 4000, 0.8
    found = torch.bincount(torch.tensor(samples(llama, count, temperature, 0)), minlength=VOCAB)
    normed, _ = llama.read(torch.tensor([[1, 2, 3]]))
    expected = count * (llama.logits(normed)[0, -1] / temperature).softmax(-1)
    deviation = (found - expected) / expected.clamp(min=1).sqrt()
    assert deviation.abs().max() < 5  # standard deviations of a count
    assert found.count_nonzero() > VOCAB // 3


def test_a_seed_gives_the_same_samples_again(llama: FrozenTarget) -> None:
    assert samples(llama, 50, 0.8, 1) == samples(llama, 50, 0.8, 1) != samples(llama, 50, 0.8, 2)


def test_answers_keep_the_order_of_their_prompts(llama: FrozenTarget) -> None:
    prompts = random_prompts(5)
    rows = answer_greedily(llama, prompts, (), 6)
    assert [row[:start] for row, start in rows] == prompts
    assert {len(row) - start for row, start in rows} == {6}
