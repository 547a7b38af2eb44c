"""DFlash2 heads with their targets."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from eagle_aot.export import Pair
from eagle_aot.export.drafters.dflash2 import kind
from eagle_aot.export.drafters.dflash2.model import DFlash2Draft
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.golden_cases import GOLDEN
from support.random_pair import add_tokenizer

CASES = GOLDEN / "dflash2"
Z_LAB, SPECULATORS = "zlab_window", "speculators_window"
SEQ_LEN = 256


def dflash2_pair(
    case: str = Z_LAB, head: Path | None = None, sequences: int = 1
) -> tuple[Pair, TapTarget, DFlash2Draft]:
    """A case's target with its head, or with one in another directory."""
    target = load_target(CASES / case / "target", SEQ_LEN)
    checkpoint = Checkpoint(head or CASES / case / "draft")
    caches = CacheSpec(SEQ_LEN, torch.float32, sequences)
    draft, _ = kind.load(checkpoint, target, torch.float32, caches, None)
    assert isinstance(draft, DFlash2Draft)
    return Pair(target, draft), target, draft


def write_dflash2_pair(directory: Path) -> tuple[Path, Path]:
    """Copy the target and head that speculators made and add a tokenizer, which has more tokens
    than the target.

    Returns both directories.
    """
    shutil.copytree(CASES / SPECULATORS, directory, dirs_exist_ok=True)
    add_tokenizer(directory / "target")
    return directory / "target", directory / "draft"


def changed_head(directory: Path, case: str = Z_LAB, **changes: Any) -> Path:
    """A case's head with another config; None removes a key. The options of z-lab's `dflash_config`
    are changed where they are."""
    head = shutil.copytree(CASES / case / "draft", directory / "head")
    config = json.loads((head / "config.json").read_text())
    own = config.get("dflash_config", config)
    for key, value in changes.items():
        (own if key in own else config)[key] = value
    (head / "config.json").write_text(json.dumps(config))
    return head
