"""A pair of a golden target with experts and a random EAGLE-3 head."""

import shutil
from pathlib import Path

import torch

from support.checkpoint_edits import edit_config
from support.golden_cases import GOLDEN
from support.random_pair import add_tokenizer, write_head

VOCAB, DRAFT_VOCAB = 160, 96


def write_experts_pair(directory: Path, case: str) -> tuple[Path, Path]:
    """Copy the target of `case`, without a stop id, add a tokenizer, which has more tokens, and
    write a head; return both directories."""
    torch.manual_seed(0)
    target, head = directory / "target", directory / "head"
    shutil.copytree(GOLDEN / case, target)
    edit_config(target, eos_token_id=None)
    add_tokenizer(target)
    write_head(head, VOCAB, draft_vocab=DRAFT_VOCAB)
    return target, head
