"""Pairs of a Gemma 4 target and its assistant, from the golden cases."""

import shutil
from pathlib import Path

import torch

from eagle_aot.export import Pair
from eagle_aot.export.drafters.gemma4_assistant import kind
from eagle_aot.export.drafters.gemma4_assistant.model import Gemma4Assistant
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.gemma4 import Gemma4Target
from support.golden_cases import GOLDEN
from support.random_pair import add_tokenizer

SEQ_LEN = 256


def assistant_pair(
    case: Path, assistant: Path | None = None, sequences: int = 1
) -> tuple[Pair, Gemma4Target, Gemma4Assistant]:
    """The target of a case with its assistant, or with one in another directory."""
    target = load_target(case / "target", SEQ_LEN, max_batch_size=sequences)
    assert isinstance(target, Gemma4Target)
    checkpoint = Checkpoint(assistant or case / "assistant")
    caches = CacheSpec(SEQ_LEN, torch.float32, sequences)
    draft, _ = kind.load(checkpoint, target, torch.float32, caches, None)
    return Pair(target, draft), target, draft


def write_assistant_pair(directory: Path) -> tuple[Path, Path]:
    """The smallest case with a tokenizer, which knows more tokens than it; returns both parts."""
    shutil.copytree(GOLDEN / "mtp" / "two_layers", directory, dirs_exist_ok=True)
    add_tokenizer(directory / "target")
    return directory / "target", directory / "assistant"
