"""What is the tiny pair's own about its head: sizes, vocabulary and what it is measured on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast as Tokenizer

from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.loading.provenance import read_eos_ids
from eagle_aot.lab.training.heads.answers.writer import answer_greedily
from eagle_aot.lab.training.heads.corpus import Corpus
from eagle_aot.lab.training.heads.draft import (
    HeadSizes,
    build_draft,
    draft_config,
    draft_vocabulary,
)
from eagle_aot.lab.training.heads.evaluation import Score, evaluate_head
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget, read_target
from eagle_aot.lab.training.heads.train import train_head as train_any_head
from eagle_aot.lab.training.loop import Budget, TrainingProgress
from eagle_aot.lab.training.tiny.corpus import first_stories
from eagle_aot.lab.training.tiny.target import ANSWER_TOKENS
from eagle_aot.lab.training.tiny.tokenizer import chat_frame

CHAIN_LEN = 4
SIZES = HeadSizes(
    draft_vocab_size=512,
    intermediate_size=768,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    # Boundaries: hidden states after 2, 4 and 5 of the target's six decoder layers.
    tap_layers=(2, 4, 5),
)


@dataclass(frozen=True, slots=True)
class HeadResult:
    """A trained head and how it fared."""

    draft: Eagle3Draft
    progress: TrainingProgress
    score: Score

    def summary(self) -> dict[str, Any]:
        """What training.json says about the head."""
        return {**self.progress.summary(), **self.score.summary(), "chain_len": CHAIN_LEN}


def train_head(
    target_dir: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    budget: Budget,
    seed: int,
    problems: int,
) -> HeadResult:
    """Trains a head on the frozen target and measures it on the target's own held-out answers."""
    target, stop_ids = read_target("auto", target_dir, corpus.flat.device), read_eos_ids(target_dir)
    always = [*stop_ids, *tokenizer.convert_tokens_to_ids([str(digit) for digit in range(10)])]
    counts = corpus.answer_counts(target.facts.vocab_size)
    target_ids = draft_vocabulary(counts, SIZES.draft_vocab_size, always)
    draft = build_draft(target, draft_config(target, SIZES), target_ids)
    progress = train_any_head(draft, target, corpus, budget, seed)
    held_out = _answers(target, tokenizer, stop_ids, problems, seed)
    return HeadResult(draft, progress, evaluate_head(draft, target, held_out))


def _answers(
    target: FrozenTarget, tokenizer: Tokenizer, stop_ids: tuple[int, ...], count: int, seed: int
) -> Corpus:
    """The target's own, to questions that training never saw."""
    before, after = chat_frame(tokenizer)
    questions = [before + story.question + after for story in first_stories(count, seed, "test")]
    prompts = tokenizer(questions, add_special_tokens=False).input_ids
    return Corpus.of_rows(answer_greedily(target, prompts, stop_ids, ANSWER_TOKENS), target.device)
