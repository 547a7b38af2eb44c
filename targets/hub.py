"""Public repositories of targets and draft heads, and which of a repository's files are read.

Sources of the names: the model cards of their publishers, and the tables of
`vllm-project/speculators` and `z-lab/dflash`.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eagle_aot.artifact import (
    DFLASH,
    DFLASH2,
    DSPARK,
    EAGLE3,
    GEMMA4_ASSISTANT,
    P_EAGLE,
    PROCESSOR_FILES,
    TOKENIZER_FILES,
)
from eagle_aot.common.errors import CheckpointNotFoundError
from eagle_aot.common.hub import Repository
from eagle_aot.targets.checkpoint import BIN_INDEX, INDEX, QUANT_FILES, WHOLE, WHOLE_BIN
from eagle_aot.targets.checkpoint_path import CONFIG, QUOTED_NAMES, VISION_GGUF


@dataclass(frozen=True, slots=True)
class PublicPair:
    """The repository of a target, INT4 where its publisher has one, and those of the heads that
    were published for it, by kind; the first one is the default, unless the target's own checkpoint
    has an MTP layer."""

    target: str
    heads: Mapping[str, str] = field(default_factory=dict)
    is_int4: bool = False


PUBLIC_PAIRS = {
    "gemma4-31b": PublicPair(
        "google/gemma-4-31B-it-qat-w4a16-ct",
        {
            EAGLE3: "RedHatAI/gemma-4-31B-it-speculator.eagle3",
            DFLASH: "RedHatAI/gemma-4-31B-it-speculator.dflash",
            DFLASH2: "RedHatAI/gemma-4-31B-it-speculator.dflash2",
            DSPARK: "RedHatAI/gemma-4-31B-it-speculator.dspark",
            GEMMA4_ASSISTANT: "google/gemma-4-31B-it-qat-q4_0-unquantized-assistant",
        },
        is_int4=True,
    ),
    "gemma4-12b": PublicPair(
        "google/gemma-4-12B-it-qat-w4a16-ct",
        {GEMMA4_ASSISTANT: "google/gemma-4-12B-it-assistant"},
        is_int4=True,
    ),
    "gemma4-26b-a4b": PublicPair(
        "google/gemma-4-26B-A4B-it",
        {
            EAGLE3: "RedHatAI/gemma-4-26B-A4B-it-speculator.eagle3",
            GEMMA4_ASSISTANT: "google/gemma-4-26B-A4B-it-assistant",
        },
    ),
    "qwen3-30b-a3b": PublicPair(
        "Qwen/Qwen3-30B-A3B",
        {
            EAGLE3: "AngelSlim/Qwen3-a3B_eagle3",
            DFLASH: "RedHatAI/Qwen3-30B-A3B-speculator.dflash",
        },
    ),
    "qwen3.5-4b": PublicPair("Qwen/Qwen3.5-4B", {DFLASH: "z-lab/Qwen3.5-4B-DFlash"}),
    "qwen3.5-9b": PublicPair("Qwen/Qwen3.5-9B", {DFLASH: "z-lab/Qwen3.5-9B-DFlash"}),
    "qwen3.5-27b": PublicPair("Qwen/Qwen3.5-27B", {DFLASH: "z-lab/Qwen3.5-27B-DFlash"}),
    "qwen3.6-27b": PublicPair("Qwen/Qwen3.6-27B", {DFLASH: "z-lab/Qwen3.6-27B-DFlash"}),
    "qwen3.8-27b": PublicPair(
        "Qwen/Qwen3.8-27B",
        {
            DFLASH2: "z-lab/Qwen3.8-27B-DFlash2",
            DSPARK: "RedHatAI/Qwen3.8-27B-speculator.dspark",
        },
    ),
    "qwen3-1.7b": PublicPair("Qwen/Qwen3-1.7B", {EAGLE3: "AngelSlim/Qwen3-1.7B_eagle3"}),
    "qwen3-4b": PublicPair(
        "Qwen/Qwen3-4B-AWQ",
        {EAGLE3: "AngelSlim/Qwen3-4B_eagle3", DFLASH: "z-lab/Qwen3-4B-DFlash-b16"},
        is_int4=True,
    ),
    "qwen3-8b": PublicPair(
        "Qwen/Qwen3-8B-AWQ",
        {
            EAGLE3: "RedHatAI/Qwen3-8B-speculator.eagle3",
            P_EAGLE: "RedHatAI/Qwen3-8B-speculator.peagle",
            DFLASH: "RedHatAI/Qwen3-8B-speculator.dflash",
        },
        is_int4=True,
    ),
    "qwen3-14b": PublicPair(
        "Qwen/Qwen3-14B-AWQ", {EAGLE3: "RedHatAI/Qwen3-14B-speculator.eagle3"}, is_int4=True
    ),
    "qwen3-32b": PublicPair(
        "Qwen/Qwen3-32B-AWQ", {EAGLE3: "RedHatAI/Qwen3-32B-speculator.eagle3"}, is_int4=True
    ),
    "qwen2.5-7b": PublicPair("Qwen/Qwen2.5-7B-Instruct-AWQ", is_int4=True),
    "llama-3.1-8b": PublicPair(
        "meta-llama/Llama-3.1-8B-Instruct",
        {
            EAGLE3: "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3",
            DFLASH: "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        },
    ),
    "llama-3.3-70b": PublicPair(
        "meta-llama/Llama-3.3-70B-Instruct",
        {EAGLE3: "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3"},
    ),
}
"""The public pair of each registered target that has more than its plain checkpoint."""

SHARDS = "model-*-of-*.safetensors"
BIN_SHARDS = "pytorch_model-*-of-*.bin"
SMALL_FILES = (
    *(CONFIG, *QUANT_FILES, "mask_embedding.pt"),
    *TOKENIZER_FILES,
    *PROCESSOR_FILES,
)
"""Files of a checkpoint that are read in addition to its weights, where they exist."""


def checkpoint_files(names: Sequence[str], repository: Repository) -> list[str]:
    """Return the files of a repository that a checkpoint is read from: one format of weights, the
    config and the tokenizer. A GGUF file is chosen if the repository's name in the command says
    so, or if it has no other weights and a single one.

    Raises CheckpointNotFoundError for a repository without weights that are read.
    """
    ggufs = [name for name in names if name.endswith(".gguf") and VISION_GGUF not in name]
    if repository.file is not None:
        return [_named_gguf(ggufs, repository)]
    weights = _weights(names)
    if not weights and len(ggufs) > 1:
        raise CheckpointNotFoundError(
            f"{repository}: {len(ggufs)} GGUF files: name one, {repository}:{ggufs[0]}"
        )
    if not (weights := weights or ggufs):
        quoted = ", ".join(names[:QUOTED_NAMES]) or "nothing"
        raise CheckpointNotFoundError(
            f"{repository}: no *.safetensors, no pytorch_model.bin and no *.gguf: it has {quoted}"
        )
    return [*(name for name in SMALL_FILES if name in names), *weights]


def _weights(names: Sequence[str]) -> list[str]:
    """Return the files of weights as `checkpoint.weight_files` would choose them, with the index
    that names shards."""
    safetensors = [name for name in names if name.endswith(".safetensors")]
    if INDEX in names:
        return [INDEX, *(fnmatch.filter(safetensors, SHARDS) or safetensors)]
    for whole in (WHOLE, WHOLE_BIN):
        if whole in names:
            return [whole]
    if safetensors:
        return safetensors
    shards = fnmatch.filter(names, BIN_SHARDS)
    return [BIN_INDEX, *shards] if BIN_INDEX in names and shards else []


def _named_gguf(ggufs: Sequence[str], repository: Repository) -> str:
    """Return the GGUF file of a name or of a part of it, as `Q4_K_M`."""
    part = str(repository.file)
    matches = [name for name in ggufs if name == part] or [
        name for name in ggufs if part.lower() in name.lower()
    ]
    if len(matches) != 1:
        found = f"{len(matches)} of its GGUF files have" if matches else "no GGUF file of it has"
        listed = ", ".join((matches or ggufs)[:QUOTED_NAMES]) or "none"
        raise CheckpointNotFoundError(
            f"{repository}: {found} {part!r} in the name: name one of {listed}"
        )
    return matches[0]
