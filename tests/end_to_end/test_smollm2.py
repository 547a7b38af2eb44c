"""A real chat model, read from its bare GGUF as transformers reads it.

Only where SMOLLM2_DIR names the directory that `scripts/get_smollm2` filled: nothing is downloaded.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.export.loading.describe_target import describe_target
from eagle_aot.export.loading.provenance import read_eos_ids
from eagle_aot.export.loading.tokenizer import convert_tokenizer
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint, tokenizer_directory
from eagle_aot.targets.decoder.weights import replace_linear
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.llama import SMOLLM2_135M, read_llama

SMOLLM2_DIR = "SMOLLM2_DIR"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
TOKENS = 8
PROMPTS = (
    "What is the capital of France?",
    "Write a function in Python that adds two numbers.",
    "Name three animals that live in the sea, and say what each of them eats.",
    "Übersetze ins Deutsche: good morning, naïve 3 * 12 = 36.",
)

pytestmark = pytest.mark.skipif(
    SMOLLM2_DIR not in os.environ,
    reason=f"scripts/get_smollm2 DIR gets a real model, {SMOLLM2_DIR}=DIR reads it here",
)


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Read the file's fields once: each opening takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
        yield


@pytest.fixture(scope="module")
def directory() -> Path:
    return Path(os.environ[SMOLLM2_DIR])


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return convert_tokenizer(tokenizer_directory(directory))


def test_config_is_the_published_geometry(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    found = read_llama(checkpoint.config, 64)
    assert found.rms_norm_eps == pytest.approx(SMOLLM2_135M.rms_norm_eps)  # float32 in the file
    assert replace(found, rms_norm_eps=SMOLLM2_135M.rms_norm_eps) == SMOLLM2_135M
    assert checkpoint.config.count("max_position_embeddings") == 8192
    assert read_eos_ids(directory) == (2, 0)  # <|im_end|>, and <|endoftext|> as in llama.cpp


def test_linears_are_int4_and_the_table_is_dense(directory: Path) -> None:
    found = describe_target(directory)
    assert found["linears"] == {"int4": 210, "int8": 0, "dense": 0}
    assert [(g["count"], g["what"], g["stored"], g["held"]) for g in found["formats"]] == [
        (210, "linear", "Q4_1", "int4"),
        (1, "table", "Q8_0", "dense"),
    ]
    assert (found["tokenizer"], found["chat_template"]) == ("loads", True)


def test_tokenizer_gives_the_ids_of_transformers(directory: Path, tokenizer: Tokenizer) -> None:
    theirs: Any = AutoTokenizer.from_pretrained(directory, gguf_file=MODEL)
    assert not tokenizer.adds_bos
    for prompt in PROMPTS:
        turn = [{"role": "user", "content": prompt}]
        ids = theirs.apply_chat_template(turn, add_generation_prompt=True).input_ids
        assert tokenizer.encode(prompt) == ids
        assert tokenizer.encode(prompt, raw=True) == theirs(prompt).input_ids
        assert tokenizer.decode(theirs(prompt).input_ids) == prompt


@pytest.mark.slow
def test_first_tokens_are_those_of_transformers(directory: Path, tokenizer: Tokenizer) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(
        directory, gguf_file=MODEL, dtype=torch.float32
    ).eval()
    target: Any = load_target(directory, 128)
    for name, module in list(target.named_modules()):
        if isinstance(module, Int4Linear):
            replace_linear(target, name, module.dense())  # once, not for each token
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        expected = theirs.generate(
            torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False
        )[0, len(ids) :].tolist()  # fmt: skip
        assert greedy(target, ids, len(expected)) == expected, prompt


@torch.inference_mode()
def greedy(target: Any, ids: list[int], count: int) -> list[int]:
    """Return the ids that a target continues a prompt with."""
    target.reset_cache()
    found: list[int] = []
    rows, start = ids, 0
    while len(found) < count:
        positions = torch.arange(start, start + len(rows))
        logits, _ = target.forward_logits_taps(torch.tensor([rows]), positions, True)
        start += len(rows)
        rows = [int(logits[0, -1].argmax())]
        found += rows
    return found
