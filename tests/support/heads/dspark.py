"""DSpark heads with their targets."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from eagle_aot.export import Pair
from eagle_aot.export.drafters.dspark import kind
from eagle_aot.export.drafters.dspark.model import DSparkDraft
from eagle_aot.targets import TapTarget, load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.golden_cases import GOLDEN
from support.random_pair import add_tokenizer

CASES = GOLDEN / "dspark"
DEEPSPEC, SPECULATORS = "deepspec_anchor", "speculators_reduced"
SEQ_LEN = 256


def dspark_pair(
    case: str = DEEPSPEC, head: Path | None = None, sequences: int = 1
) -> tuple[Pair, TapTarget, DSparkDraft]:
    """A case's target with its head, or with one in another directory."""
    target = load_target(CASES / case / "target", SEQ_LEN, max_batch_size=sequences)
    checkpoint = Checkpoint(head or CASES / case / "draft")
    caches = CacheSpec(SEQ_LEN, torch.float32, sequences)
    draft, _ = kind.load(checkpoint, target, torch.float32, caches, None)
    assert isinstance(draft, DSparkDraft)
    return Pair(target, draft), target, draft


def write_dspark_pair(directory: Path) -> tuple[Path, Path]:
    """Copy DeepSpec's target and head and add a tokenizer, which has more tokens than the target.

    Returns both directories.
    """
    shutil.copytree(CASES / DEEPSPEC, directory, dirs_exist_ok=True)
    add_tokenizer(directory / "target")
    return directory / "target", directory / "draft"


def changed_head(directory: Path, case: str = DEEPSPEC, **changes: Any) -> Path:
    """A case's head with another config; None removes a key."""
    head = shutil.copytree(CASES / case / "draft", directory / "head")
    config = json.loads((head / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not None}
    (head / "config.json").write_text(json.dumps(kept))
    return head
