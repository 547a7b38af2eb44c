"""A P-EAGLE head that was trained drafts in the runner what it drafted in training."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from eagle_aot.export import Pair
from eagle_aot.export.drafters.eagle3.model import ParallelDraft
from eagle_aot.export.drafters.peagle import kind
from eagle_aot.export.drafters.registry import name_of_kind
from eagle_aot.lab.training.heads.chains import TTT_STEPS, chain_choices
from eagle_aot.lab.training.heads.corpus import Corpus
from eagle_aot.lab.training.heads.draft import HeadSizes, build_draft, draft_config
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget, read_target
from eagle_aot.lab.training.heads.head_checkpoint import Verifier, save_head
from eagle_aot.lab.training.heads.learned_mask import LearnedMask, rarest_token
from eagle_aot.lab.training.heads.train import train_head
from eagle_aot.lab.training.loop import Budget
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.drafters.eagle3 import PEagleDrafter
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.gemma_oracle import VOCAB, random_tokens
from support.pre_norm_oracle import random_pre_norm, save
from support.runner.eager_executor import EagerExecutor
from support.runner.watched import Rounds, rounds_of

CPU = torch.device("cpu")
SIZES = HeadSizes(draft_vocab_size=48, intermediate_size=32, tap_layers=(1, 2, 3), num_layers=3)
BUDGET = Budget(steps=30, tokens=256, learning_rate=1e-2)
PROMPT, ROOM, ROOM_IN_ALL = 20, 24, 64


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(random_pre_norm("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def target(directory: Path) -> FrozenTarget:
    return read_target("auto", directory, CPU)


@pytest.fixture(scope="module")
def trained(target: FrozenTarget) -> LearnedMask:
    """With the weights that its file has, which are of 16 bits."""
    torch.manual_seed(0)
    rows = [(random_tokens(30, seed)[0].tolist(), 4) for seed in range(12)]
    corpus = Corpus.of_rows(rows, CPU)
    mask = rarest_token(corpus.token_counts(VOCAB))
    draft = build_draft(target, draft_config(target, SIZES, mask), torch.arange(20, 68))
    train_head(draft, target, corpus, BUDGET, 0)
    assert isinstance(draft, LearnedMask)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.copy_(parameter.bfloat16())
    return draft


@pytest.fixture(scope="module")
def loaded(
    directory: Path, trained: LearnedMask, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TapTarget, ParallelDraft]:
    folder = tmp_path_factory.mktemp("head")
    save_head(trained, Verifier.read(directory, "auto"), 4, folder, with_embedding=False)
    checkpoint, target = Checkpoint(folder), load_target(directory, ROOM_IN_ALL)
    assert name_of_kind(checkpoint) == "p-eagle"
    draft, _ = kind.load(
        checkpoint, target, torch.float32, CacheSpec(ROOM_IN_ALL, torch.float32), None
    )
    assert isinstance(draft, ParallelDraft) and draft.mask_token == trained.mask_token
    return target, draft


@pytest.mark.slow
@pytest.mark.parametrize("chain_len", [2, TTT_STEPS])
def test_the_runner_drafts_what_training_drafts(
    chain_len: int,
    loaded: tuple[TapTarget, ParallelDraft],
    trained: LearnedMask,
    target: FrozenTarget,
) -> None:
    prompt = random_tokens(PROMPT, 99)[0].tolist()
    output, rounds = drafted(*loaded, prompt, chain_len)
    tokens = torch.tensor([[*prompt, *output]])
    _, taps = target.read(tokens, trained.tap_layers)
    choices = torch.cat(list(chain_choices(trained, tokens, taps, chain_len)))
    known, chains = PROMPT + 1, set()
    for drafts, accepted in rounds:
        chain = max(drafts, key=len)
        assert chain == tuple(choices[: len(chain), known - 2].tolist())
        chains.add(chain)
        known += len(accepted) + 1
    assert known >= PROMPT + ROOM and len(chains) > 2, "it drafts the same whatever the text"


def drafted(
    target: TapTarget, draft: ParallelDraft, prompt: Sequence[int], chain_len: int
) -> tuple[list[int], Rounds]:
    """A text, and the drafts of its rounds."""
    executor = EagerExecutor(Pair(target, draft))
    drafter = PEagleDrafter(executor, executor.artifact, draft.target_ids)
    output, _, rounds = rounds_of(executor, drafter, Shape.chain(chain_len), prompt, ROOM)
    return output, rounds


def test_the_mask_is_the_last_token_that_no_text_holds() -> None:
    counts = Corpus.of_rows([([7, 7, 1, 9], 1), ([9, 2, 9], 1)], CPU).token_counts(10)
    assert counts.tolist() == [0, 1, 1, 0, 0, 0, 0, 2, 0, 3]
    assert (rarest_token(counts), rarest_token(counts[1:3])) == (8, 1)
