"""A training run: its options, where its files are, and what they depend on."""

import hashlib
import json
import math
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch

from eagle_aot.artifact import DFLASH2, EAGLE3, P_EAGLE
from eagle_aot.common.errors import SettingError
from eagle_aot.common.spec import Option, check_fields
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.export.loading.checkpoints import target_name
from eagle_aot.export.loading.locate import locate
from eagle_aot.export.loading.provenance import identity, read_eos_ids
from eagle_aot.export.loading.tokenizer import convert_tokenizer
from eagle_aot.export.spec import AUTO, ExportSpec, checked_tap_layers
from eagle_aot.lab.training.heads.draft import HeadSizes
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget, read_target
from eagle_aot.lab.training.loop import Budget, chosen_device
from eagle_aot.targets import get_target, model_type
from eagle_aot.targets.checkpoint import read_config, tokenizer_directory
from eagle_aot.targets.checkpoint_path import is_checkpoint, why_no_checkpoint
from eagle_aot.targets.step import TAIL

LAYERS = {EAGLE3: 1, P_EAGLE: 4, DFLASH2: 5}
"""Default numbers of layers: those of the published heads (P-EAGLE: arXiv 2602.01469)."""
PROMPTS, ANSWERS, HEAD = "Prompts", "Answers", "Head"


class TrainSpec(msgspec.Struct, kw_only=True, frozen=True):
    """A run's options. `part` is what to do of it."""

    part: Literal["all", "prompts", "answers", "head", "evaluate"] = "all"
    target_model: Annotated[str, Option("The target, as eagle-export takes it.")] = "auto"
    target_dir: Annotated[Path | None, Option("The target's directory or GGUF file.")] = None
    output_dir: Annotated[Path, Option("Where all files of the run are written.")]
    device: Annotated[Literal["auto", "cpu", "cuda"], Option("Where to run.")] = "auto"
    seed: Annotated[int, Option("Random seed.")] = 0
    prompts: Annotated[int, Option("Prompts made from templates.", PROMPTS, least=0)] = 330_000
    prompts_jsonl: Annotated[Path | None, Option("A file of more prompts.", PROMPTS)] = None
    longest_prompt: Annotated[
        int, Option("Most tokens of a prompt; longer ones are left out.", PROMPTS, least=1)
    ] = 128
    answer_tokens: Annotated[int, Option("Tokens of all answers together.", ANSWERS, least=1)] = (
        30_000_000
    )
    answer_minutes: Annotated[
        float, Option("Minutes after which answering ends early.", ANSWERS, least=0)
    ] = math.inf
    max_new_tokens: Annotated[int, Option("Most tokens of an answer.", ANSWERS, least=1)] = 192
    temperature: Annotated[
        float, Option("Temperature of every other answer; the others are greedy.", ANSWERS, least=0)
    ] = 0.8
    slots: Annotated[
        int, Option("Answers written in parallel, as memory allows.", ANSWERS, least=1)
    ] = 2048
    held_out: Annotated[
        int, Option("Greedy answers to measure on, never trained on.", ANSWERS, least=1)
    ] = 256
    drafter: Annotated[
        Literal["eagle3", "p-eagle", "dflash2"], Option("The kind of head.", HEAD)
    ] = "eagle3"
    draft_vocab_size: Annotated[
        int,
        Option(
            "Vocabulary size, of the answers' most frequent tokens. DFlash2: all.", HEAD, least=1
        ),
    ] = 8192
    intermediate_size: Annotated[int, Option("Width of the head's MLP.", HEAD, least=1)] = 1536
    layers: Annotated[
        int | None, Option("Layers of the head. Default: 1; P-EAGLE: 4; DFlash2: 5.", HEAD, least=1)
    ] = None
    tap_layers: Annotated[
        tuple[int, ...] | None,
        Option("Layers whose hidden states the head reads, counted as layers already applied. "
               "Default: 2, n // 2 and n - 3; DFlash2: five from 2 to n - 3.", HEAD, "A,B,C",
               commas=True),
    ] = None  # fmt: skip
    block_size: Annotated[
        int,
        Option("Rows of a DFlash2 head's block: the bonus token and drafts.", HEAD, least=2,
               most=TAIL),
    ] = 8  # fmt: skip
    selector_rank: Annotated[
        int, Option("Rank of a DFlash2 head's selector of candidates.", HEAD, least=1)
    ] = 64
    steps: Annotated[int, Option("Training steps.", HEAD, least=1)] = 2600
    batch_tokens: Annotated[int, Option("Tokens of a batch and padding.", HEAD, least=1)] = 32_768
    learning_rate: Annotated[float, Option("Highest learning rate.", HEAD, least=0)] = 1e-3
    head_minutes: Annotated[
        float, Option("Minutes after which training ends early.", HEAD, least=0)
    ] = math.inf
    save_every: Annotated[int, Option("Steps between checkpoints.", HEAD, least=1)] = 250
    chain_len: Annotated[int, Option("Drafts per round in the head's config.", HEAD, least=1)] = 4
    head_format: Annotated[
        Literal["bf16", "int8", "int4"], Option("How the head's linears are stored.", HEAD)
    ] = "int8"
    with_embedding: Annotated[bool, Option("Store the target's embedding, too.", HEAD)] = False
    compile: Annotated[bool | None, Option("Use torch.compile. Default: on a GPU.", HEAD)] = None
    eval_prompts_jsonl: Annotated[
        Path | None, Option("Prompts, each with its `kind`, to measure the written head on.", HEAD)
    ] = None

    def __post_init__(self) -> None:
        check_fields(self)


class Run:
    """A spec with the target that it names, and the identities of what it writes."""

    def __init__(self, spec: TrainSpec) -> None:
        """Raises SettingError for a target or a device that does not exist."""
        self.spec, self.device = spec, torch.device(chosen_device(spec.device))
        self.target_model, self.target_dir = located_target(spec)
        self.compile = self.device.type == "cuda" if spec.compile is None else spec.compile
        self.head_dir = spec.output_dir / "head"
        self.sizes = HeadSizes(
            draft_vocab_size=spec.draft_vocab_size,
            intermediate_size=spec.intermediate_size,
            num_layers=spec.layers or LAYERS[spec.drafter],
            tap_layers=spec.tap_layers and checked_tap_layers(spec.tap_layers),
            block_size=spec.block_size,
            selector_rank=spec.selector_rank,
        )
        self.budget = Budget(
            steps=spec.steps,
            tokens=spec.batch_tokens,
            learning_rate=spec.learning_rate,
            minutes=spec.head_minutes,
        )

    @cached_property
    def target(self) -> FrozenTarget:
        """The target on the device, read when it is first needed."""
        auto = self.target_model == AUTO
        name = model_type(read_config(self.target_dir)) if auto else self.target_model
        return read_target(name, self.target_dir, self.device)

    @cached_property
    def tokenizer_dir(self) -> Path:
        """The directory of the target's tokenizer."""
        return tokenizer_directory(self.target_dir)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer."""
        return convert_tokenizer(self.tokenizer_dir)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an answer."""
        return read_eos_ids(self.target_dir)

    @cached_property
    def target_sha256(self) -> dict[str, str]:
        """The hashes of the target's files, by their names."""
        records = identity(self.target_dir).files
        return {name: record.sha256 for name, record in records.items()}

    @cached_property
    def prompts_identity(self) -> str:
        """The hash of everything that the prompts depend on."""
        spec, file = self.spec, self.spec.prompts_jsonl
        return identity_of(
            seed=spec.seed,
            target=self.target_sha256,
            count=spec.prompts,
            longest=spec.longest_prompt,
            jsonl=None if file is None else hashlib.sha256(file.read_bytes()).hexdigest(),
        )

    @cached_property
    def answers_identity(self) -> str:
        """The hash of everything that an answer depends on."""
        return identity_of(
            prompts=self.prompts_identity,
            max_new_tokens=self.spec.max_new_tokens,
            temperature=self.spec.temperature,
        )

    def head_identity(self, texts: int) -> str:
        """Return the hash of everything that a head depends on that is trained on `texts` texts."""
        minutes = None if math.isinf(self.budget.minutes) else self.budget.minutes
        return identity_of(
            answers=self.answers_identity,
            texts=texts,
            drafter=self.spec.drafter,
            sizes=asdict(self.sizes),
            held_out=self.spec.held_out,
            budget=asdict(self.budget) | {"minutes": minutes},
        )


def located_target(spec: TrainSpec) -> tuple[str, Path]:
    """Return the target's name and directory; what is no path is downloaded.

    Raises SettingError where none is named, or none exists, and HubError.
    """
    target = locate(
        ExportSpec(target_model=spec.target_model, target_dir=spec.target_dir, drafter="ngram")
    )
    name = target_name(target)
    directory = target.target_dir or get_target(name).target_dir
    if directory is None:
        raise SettingError(f"--target-dir is needed: {name} is read from a directory")
    if not is_checkpoint(directory):
        raise SettingError(f"--target-dir {why_no_checkpoint(directory)}")
    return name, directory


def identity_of(**facts: Any) -> str:
    """Return a sha256 that is the same for the same facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
