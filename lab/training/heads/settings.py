"""What a run was asked for, and where it keeps what."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.export.loading.provenance import checkpoint_records, read_eos_ids
from eagle_aot.export.loading.tokenizer import convert_tokenizer
from eagle_aot.lab.training.heads.draft import HeadSizes
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget, read_target
from eagle_aot.lab.training.loop import Budget
from eagle_aot.targets import model_type
from eagle_aot.targets.checkpoint import Checkpoint, tokenizer_directory


@dataclass(frozen=True, kw_only=True)
class Prompting:
    """`count` prompts that templates make, `own` that the target makes, or those of a file.

    None has more than `longest` tokens.
    """

    count: int
    own: int
    longest: int
    jsonl: Path | None


@dataclass(frozen=True, kw_only=True)
class Answering:
    """Until there are `tokens` of answers or `minutes` are over; `slots` texts at once.

    Every other prompt is answered greedily, the others at `temperature`.
    """

    tokens: int
    minutes: float
    max_new_tokens: int
    temperature: float
    slots: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything; `held_out` greedy answers are measured on and never trained on."""

    output_dir: Path
    target_model: str
    target_dir: Path
    device: torch.device
    seed: int
    prompting: Prompting
    answering: Answering
    held_out: int
    drafter: str
    sizes: HeadSizes
    budget: Budget
    save_every: int
    chain_len: int
    head_format: str
    with_embedding: bool
    compiled: bool

    @property
    def head_dir(self) -> Path:
        """Where the head is written."""
        return self.output_dir / "head"

    @cached_property
    def target(self) -> FrozenTarget:
        """The target on the device, read when it is first needed."""
        auto = self.target_model == "auto"
        name = model_type(Checkpoint(self.target_dir)) if auto else self.target_model
        return read_target(name, self.target_dir, self.device)

    @cached_property
    def tokenizer_dir(self) -> Path:
        """Where the target's tokenizer lies."""
        return tokenizer_directory(self.target_dir)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The target's."""
        return convert_tokenizer(self.tokenizer_dir)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an answer."""
        return read_eos_ids(self.target_dir)

    @cached_property
    def target_sha256(self) -> dict[str, str]:
        """Of the target's files, by their names."""
        records = checkpoint_records(self.target_dir)
        return {name: record.sha256 for name, record in records.items()}

    @cached_property
    def prompts_identity(self) -> str:
        """What the prompts depend on."""
        asked = asdict(self.prompting)
        if self.prompting.jsonl is not None:
            asked["jsonl"] = hashlib.sha256(self.prompting.jsonl.read_bytes()).hexdigest()
        return _identity(seed=self.seed, target=self.target_sha256, **asked)

    @cached_property
    def answers_identity(self) -> str:
        """What every answer depends on."""
        asked = self.answering
        return _identity(
            prompts=self.prompts_identity,
            max_new_tokens=asked.max_new_tokens,
            temperature=asked.temperature,
        )

    def head_identity(self, texts: int) -> str:
        """What a head that is trained on so many texts depends on."""
        minutes = None if math.isinf(self.budget.minutes) else self.budget.minutes
        return _identity(
            answers=self.answers_identity,
            texts=texts,
            drafter=self.drafter,
            sizes=asdict(self.sizes),
            held_out=self.held_out,
            budget=asdict(self.budget) | {"minutes": minutes},
        )


def _identity(**facts: Any) -> str:
    """The same for the same facts: sha256."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
