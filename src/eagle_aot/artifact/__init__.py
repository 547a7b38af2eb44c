"""The contract between the export and the runner: methods, constants, files and the manifest.

An artifact is a directory that holds everything needed to run: `model.pte`, `model.ptd` where the
weights lie outside the program, `manifest.json`, and the tokenizer's files. Both sides import this
package and neither imports the other.
"""

from eagle_aot.artifact.cache_bytes import CacheBytes
from eagle_aot.artifact.files import (
    ARTIFACT_FILES,
    DRAFT_IDS,
    MANIFEST,
    PROGRAM,
    TOKENIZER_FILES,
    WEIGHTS,
    FileRecord,
    file_record,
    file_records,
    tokenizer_files,
)
from eagle_aot.artifact.manifest import (
    SCHEMA_VERSION,
    CheckpointIdentity,
    Device,
    Manifest,
    RowRange,
    Stage,
    TargetIdentity,
)
from eagle_aot.artifact.methods import (
    COPY_ROWS,
    DFLASH,
    DFLASH_BLOCK,
    DFLASH_CONTEXT,
    DRAFT_DECODE,
    DRAFT_PREFILL,
    DRAFTERS,
    EAGLE3,
    GEMMA4_ASSISTANT,
    METHODS,
    MTP_DECODE,
    NGRAM,
    PREFILL,
    TARGET_METHODS,
    TARGET_VERIFY,
    Constants,
    methods_of,
)

__all__ = [
    "ARTIFACT_FILES",
    "COPY_ROWS",
    "DFLASH",
    "DFLASH_BLOCK",
    "DFLASH_CONTEXT",
    "DRAFTERS",
    "DRAFT_DECODE",
    "DRAFT_IDS",
    "DRAFT_PREFILL",
    "EAGLE3",
    "GEMMA4_ASSISTANT",
    "MANIFEST",
    "METHODS",
    "MTP_DECODE",
    "NGRAM",
    "PREFILL",
    "PROGRAM",
    "SCHEMA_VERSION",
    "TARGET_METHODS",
    "TARGET_VERIFY",
    "TOKENIZER_FILES",
    "WEIGHTS",
    "CacheBytes",
    "CheckpointIdentity",
    "Constants",
    "Device",
    "FileRecord",
    "Manifest",
    "RowRange",
    "Stage",
    "TargetIdentity",
    "file_record",
    "file_records",
    "methods_of",
    "tokenizer_files",
]
