"""The two trainings from stories to files, and the record of what was run."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from eagle_aot.common.spec import Option
from eagle_aot.export.loading.provenance import read_eos_ids
from eagle_aot.lab.training.heads.answers.writer import answer_greedily
from eagle_aot.lab.training.heads.corpus import Corpus
from eagle_aot.lab.training.heads.draft import (
    HeadSizes,
    build_draft,
    draft_config,
    draft_vocabulary,
)
from eagle_aot.lab.training.heads.evaluation import evaluate_head
from eagle_aot.lab.training.heads.frozen_target import read_target
from eagle_aot.lab.training.heads.head_checkpoint import Verifier, save_head
from eagle_aot.lab.training.heads.train import train_head
from eagle_aot.lab.training.loop import Budget, chosen_device, environment, seed_everything
from eagle_aot.lab.training.tiny.corpus import build_corpus, first_stories
from eagle_aot.lab.training.tiny.target import ANSWER_TOKENS, save_target, train_target
from eagle_aot.lab.training.tiny.tokenizer import chat_frame, save_tokenizer, train_tokenizer

# Enough to see every word; the vocabulary does not change beyond.
TOKENIZER_STORIES = 10_000
CHAIN_LEN = 4
SIZES = HeadSizes(
    draft_vocab_size=512,
    intermediate_size=768,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    tap_layers=(2, 4, 5),  # of the target's six decoder layers
)


class TinySpec(msgspec.Struct, kw_only=True, frozen=True):
    """A run's options. `part` is what to train."""

    part: Literal["all", "target", "head"] = "all"
    output_dir: Annotated[Path, Option("Where everything is written.")]
    device: Annotated[Literal["auto", "cpu", "cuda"], Option("Where to train.")] = "auto"
    seed: Annotated[int, Option("Random seed.")] = 0
    stories: Annotated[int, Option("Stories to train on.", least=1)] = 600_000
    problems: Annotated[int, Option("Held-out problems to measure on.", least=1)] = 512
    target_steps: Annotated[int, Option("Training steps of the target.", least=1)] = 5300
    target_batch_tokens: Annotated[int, Option("Tokens of its batches, padding included.")] = 32_768
    target_learning_rate: Annotated[float, Option("Highest learning rate of the target.")] = 2e-3
    target_minutes: Annotated[float, Option("Minutes after which its training ends.")] = math.inf
    head_steps: Annotated[int, Option("Training steps of the head.", least=1)] = 3300
    head_batch_tokens: Annotated[int, Option("Tokens of its batches, padding included.")] = 32_768
    head_learning_rate: Annotated[float, Option("Highest learning rate of the head.")] = 1.5e-3
    head_minutes: Annotated[float, Option("Minutes after which its training ends.")] = math.inf

    @property
    def target_dir(self) -> Path:
        """Where the target is written."""
        return self.output_dir / "target"

    @property
    def torch_device(self) -> torch.device:
        """The device. Raises SettingError where it does not exist."""
        return torch.device(chosen_device(self.device))

    def budget(self, part: str) -> Budget:
        """Return the budget of "target" or "head"."""
        return Budget(
            steps=getattr(self, f"{part}_steps"),
            tokens=getattr(self, f"{part}_batch_tokens"),
            learning_rate=getattr(self, f"{part}_learning_rate"),
            minutes=getattr(self, f"{part}_minutes"),
        )


def run_target(spec: TinySpec) -> None:
    """Train tokenizer and target, and write them to `spec.target_dir`."""
    seed_everything(spec.seed)
    texts = (f"{s.question}\n{s.answer}" for s in first_stories(TOKENIZER_STORIES, 0, "train"))
    tokenizer = train_tokenizer(texts)
    # Saved before its first use: encoding a padded batch would leave its mark on the file.
    save_tokenizer(tokenizer, spec.target_dir)
    corpus = build_corpus(tokenizer, spec.stories, spec.seed, spec.torch_device)
    result = train_target(corpus, tokenizer, spec.budget("target"), spec.seed, spec.problems)
    save_target(result, spec.target_dir)
    _record(spec, "target", result.summary())


def run_head(spec: TinySpec) -> None:
    """Train a head for the target in `spec.target_dir`, measure it on the target's own held-out
    answers, and write it to `head`."""
    seed_everything(spec.seed)
    tokenizer = AutoTokenizer.from_pretrained(spec.target_dir)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    # The target solves nearly all of its training problems, so its own answers would be this text.
    corpus = build_corpus(tokenizer, spec.stories, spec.seed + 1, spec.torch_device)
    target = read_target("auto", spec.target_dir, spec.torch_device)
    stop_ids = read_eos_ids(spec.target_dir)
    always = [*stop_ids, *tokenizer.convert_tokens_to_ids([str(digit) for digit in range(10)])]
    counts = corpus.answer_counts(target.facts.vocab_size)
    target_ids = draft_vocabulary(counts, SIZES.draft_vocab_size, always)
    draft = build_draft(target, draft_config(target, SIZES), target_ids)
    progress = train_head(draft, target, corpus, spec.budget("head"), spec.seed)
    prefix, suffix = chat_frame(tokenizer)
    problems = first_stories(spec.problems, spec.seed, "test")
    questions = [prefix + story.question + suffix for story in problems]
    prompts = tokenizer(questions, add_special_tokens=False).input_ids
    answers = answer_greedily(target, prompts, stop_ids, ANSWER_TOKENS)
    score = evaluate_head(draft, target, Corpus.of_rows(answers, target.device))
    verifier = Verifier.read(spec.target_dir, "gemma4-tiny")
    save_head(draft, verifier, CHAIN_LEN, spec.output_dir / "head")
    summary = {**progress.summary(), **score.summary(), "chain_len": CHAIN_LEN}
    _record(spec, "head", summary)


def _record(spec: TinySpec, part: str, result: dict[str, Any]) -> None:
    """Add one part to training.json, and print it."""
    path = spec.output_dir / "training.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    budget = spec.budget(part)
    record[part] = {
        **result,
        "seed": spec.seed,
        "stories": spec.stories,
        "problems": spec.problems,
        "batch_tokens": budget.tokens,
        "learning_rate": budget.learning_rate,
        "minutes": None if math.isinf(budget.minutes) else budget.minutes,
        **environment(spec.torch_device),
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps({part: result}, indent=2))
