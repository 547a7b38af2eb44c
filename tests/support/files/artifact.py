"""An artifact of a manifest and a program that is no program."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from eagle_aot.artifact import (
    METHODS,
    PROGRAM,
    SCHEMA_VERSION,
    CheckpointIdentity,
    Constants,
    Manifest,
    TargetIdentity,
    file_record,
)

CONSTANTS = Constants(
    max_seq_len=64, vocab_size=32, n_layers=3, min_prefill_chunk=65, max_prefill_chunk=72,
    sliding_window=8, chain_len=4, max_rows=64, max_step_rows=256, max_batch_size=2,
    tail=16, flat_slots=160, draft_vocab_size=16, hidden_size=8, eos_ids=(1, 4),
)  # fmt: skip


def write_artifact(directory: Path, **changes: Any) -> Manifest:
    """Write an artifact that verifies; `changes` replace fields of its manifest."""
    (directory / PROGRAM).write_bytes(b"program")
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        eagle_aot_version="0",
        versions={},
        backend="xnnpack",
        device=None,
        drafter="eagle3",
        target=TargetIdentity(name="gemma4-tiny", directory=None, files={}),
        draft=CheckpointIdentity(directory=None, files={}),
        options={},
        decisions={},
        constants=CONSTANTS.methods(),
        methods=list(METHODS),
        shapes={},
        caches=[],
        stages=[],
        self_test=None,
        files={PROGRAM: file_record(directory / PROGRAM)},
    )
    manifest = replace(manifest, **changes)
    manifest.write(directory)
    return manifest
