"""The two trainings from stories to files, and the record of what was run."""

import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from eagle_aot.lab.training.heads.head_checkpoint import Verifier, save_head
from eagle_aot.lab.training.loop import Budget, seed_everything
from eagle_aot.lab.training.tiny.corpus import build_corpus, first_stories
from eagle_aot.lab.training.tiny.head import CHAIN_LEN, train_head
from eagle_aot.lab.training.tiny.target import save_target, train_target
from eagle_aot.lab.training.tiny.tokenizer import save_tokenizer, train_tokenizer

# Enough to see every word; the vocabulary does not change beyond.
TOKENIZER_STORIES = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run: where to write, on which device, and how many stories, held-out problems, steps."""

    output_dir: Path
    device: torch.device
    seed: int
    stories: int
    problems: int
    target: Budget
    head: Budget

    @property
    def target_dir(self) -> Path:
        return self.output_dir / "target"


def run_target(run: Run) -> None:
    """Trains tokenizer and target and writes them to `run.target_dir`."""
    seed_everything(run.seed)
    texts = (f"{s.question}\n{s.answer}" for s in first_stories(TOKENIZER_STORIES, 0, "train"))
    tokenizer = train_tokenizer(texts)
    # Saved before its first use: encoding a padded batch would leave its mark on the file.
    save_tokenizer(tokenizer, run.target_dir)
    corpus = build_corpus(tokenizer, run.stories, run.seed, run.device)
    result = train_target(corpus, tokenizer, run.target, run.seed, run.problems)
    save_target(result, run.target_dir)
    _record(run, "target", result.summary())


def run_head(run: Run) -> None:
    """Trains a head for the target in `run.target_dir` and writes it beside it."""
    seed_everything(run.seed)
    tokenizer = AutoTokenizer.from_pretrained(run.target_dir)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    # The target solves nearly all of its training problems, so its own answers would be this text.
    corpus = build_corpus(tokenizer, run.stories, run.seed + 1, run.device)
    result = train_head(run.target_dir, corpus, tokenizer, run.head, run.seed, run.problems)
    verifier = Verifier.read(run.target_dir, "gemma4-tiny")
    save_head(result.draft, verifier, CHAIN_LEN, run.output_dir / "head")
    _record(run, "head", result.summary())


def _record(run: Run, part: str, result: dict[str, Any]) -> None:
    """Adds one part to training.json and prints it."""
    path = run.output_dir / "training.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    budget = run.target if part == "target" else run.head
    record[part] = {
        **result,
        "seed": run.seed,
        "stories": run.stories,
        "problems": run.problems,
        "batch_tokens": budget.tokens,
        "learning_rate": budget.learning_rate,
        "minutes": None if math.isinf(budget.minutes) else budget.minutes,
        "device": _device_name(run.device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps({part: result}, indent=2))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
