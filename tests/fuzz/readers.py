"""Readers of files that are not trusted, each as a function of a directory.

Those of programs for CUDA are fuzzed in `tests/runtime_runner/program`.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from eagle_aot.common.tokenizer import read_tokenizer as read_artifact_tokenizer
from eagle_aot.export.drafters.eagle3.kind import describe
from eagle_aot.export.drafters.eagle3.load import load_draft
from eagle_aot.export.loading.provenance import read_eos_ids
from eagle_aot.export.reproduce import recorded_spec
from eagle_aot.lab.checks.integrity import check_integrity, report
from eagle_aot.runtime_runner.images.reader import ImageReader
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.int4.formats import format_of
from support.images import INPUTS

CONTEXT = 32  # tokens
TOKENS = torch.tensor([[3, 1, 4, 1]])


def read_target(directory: Path) -> None:
    """Load a target and run it: what loads, computes."""
    target = load_target(directory, CONTEXT)
    target.set_eagle_tap_layers([0, target.num_hidden_layers])
    target.forward_logits_taps(TOKENS % target.vocab_size, torch.arange(TOKENS.shape[1]))


def read_head(directory: Path) -> None:
    """Describe a draft head, load it and run it."""
    describe(Checkpoint(directory), None, None)
    draft = load_draft(directory, None, CONTEXT)
    width = draft.config.num_taps * draft.config.target_hidden_size
    feature = draft.fuse(torch.ones(1, TOKENS.shape[1], width))
    positions = torch.arange(TOKENS.shape[1])
    if draft.has_embedding:
        embedded = draft.embed(TOKENS % draft.config.vocab_size)
        logits, _ = draft.forward_cached(embedded, feature, positions)
        draft.target_ids[logits.argmax(-1)]


def read_weights(directory: Path) -> None:
    """Every tensor of a checkpoint, whatever its format; shapes are what tensors have."""
    checkpoint = Checkpoint(directory)
    layout = format_of(checkpoint)
    if layout is not None and layout.holds(checkpoint, "proj"):
        layout.read(checkpoint, "proj").dense()
    for name in checkpoint.names():
        shape, int4 = checkpoint.shape(name), checkpoint.int4(name)
        assert checkpoint.storage(name).is_int4 == (int4 is not None), name
        tensor = checkpoint.tensor(name)
        assert tensor.shape == shape, (tensor.shape, shape)
        assert int4 is None or int4.dense().shape == shape, shape


def read_tokenizer(directory: Path) -> None:
    """Load a tokenizer, encode with and without its template, decode."""
    read_eos_ids(directory)
    tokenizer = read_artifact_tokenizer(directory)
    for raw in (True, False):
        tokenizer.decode(tokenizer.encode("the cat", raw))


def read_manifest(directory: Path) -> None:
    """Report an artifact's manifest, take its options for an export, and verify files by it."""
    integrity = check_integrity(directory)
    json.dumps(integrity.to_json())
    "\n".join(report(integrity))
    recorded_spec(integrity.manifest, directory)
    integrity.manifest.verify(directory)


def read_pictures(directory: Path) -> None:
    """Read all images of a folder, with the settings in it."""
    reader = ImageReader(directory, INPUTS)
    for path in sorted(directory.iterdir()):
        if path.suffix != ".json":
            reader.read(path)


READERS: dict[str, Callable[[Path], None]] = {
    "artifact": read_manifest,
    **dict.fromkeys(("gemma4", "llama", "qwen3"), read_target),
    **dict.fromkeys(("head", "head_pickled", "head_speculators"), read_head),
    **dict.fromkeys(("awq", "compressed_tensors", "gguf", "gptq", "torchao"), read_weights),
    "pictures": read_pictures,
    "tokenizer": read_tokenizer,
}
"""Readers by the folder of small valid files, the seeds, that they read."""
